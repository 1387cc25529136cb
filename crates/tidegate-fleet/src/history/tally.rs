//! Two trees that make a look at all pairs a look at each once.

/// Counts by place, with sums over the places before one in logarithmic time (a Fenwick tree).
pub(super) struct Tally(Vec<u32>);

impl Tally {
    pub(super) fn new(places: usize) -> Self {
        Self(vec![0; places + 1])
    }

    /// One more at `place`, counted from 0.
    pub(super) fn add(&mut self, place: usize) {
        let mut node = place + 1;
        while let Some(count) = self.0.get_mut(node) {
            *count += 1;
            node += node & node.wrapping_neg();
        }
    }

    /// The sum over the first `places` places.
    pub(super) fn up_to(&self, places: usize) -> u32 {
        let mut sum = 0;
        let mut node = places;
        while node > 0 {
            sum += self.0[node];
            node &= node - 1;
        }
        sum
    }
}

/// Values by place: adds to all up to one, and finds the largest between two, in logarithmic time.
pub(super) struct Highest {
    /// The largest below each node, without what was added above it.
    most: Vec<i128>,
    added: Vec<i128>,
    leaves: usize,
}

impl Highest {
    /// As many places as there are values.
    pub(super) fn new(values: &[i128]) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut most = vec![i128::MIN / 4; 2 * leaves];
        most[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Self { added: vec![0; most.len()], most, leaves }
    }

    /// Adds to the first `places` places.
    pub(super) fn add_to_first(&mut self, places: usize, amount: i128) {
        self.add(1, 0..self.leaves, places, amount);
    }

    fn add(&mut self, node: usize, of: std::ops::Range<usize>, places: usize, amount: i128) {
        if of.start >= places {
            return;
        }
        if of.end <= places {
            self.most[node] += amount;
            self.added[node] += amount;
            return;
        }
        let middle = usize::midpoint(of.start, of.end);
        self.add(2 * node, of.start..middle, places, amount);
        self.add(2 * node + 1, middle..of.end, places, amount);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }

    /// The largest of these places, and where it is.
    pub(super) fn in_span(&self, places: std::ops::Range<usize>) -> Option<(i128, usize)> {
        if places.is_empty() { None } else { self.find(1, 0..self.leaves, &places) }
    }

    fn find(
        &self,
        node: usize,
        of: std::ops::Range<usize>,
        places: &std::ops::Range<usize>,
    ) -> Option<(i128, usize)> {
        if of.end <= places.start || places.end <= of.start {
            return None;
        }
        if of.len() == 1 {
            return Some((self.most[node], of.start));
        }
        if places.start <= of.start && of.end <= places.end {
            // All of it: down the side on which the largest is.
            let (left, right) = (self.most[2 * node], self.most[2 * node + 1]);
            let middle = usize::midpoint(of.start, of.end);
            let (child, half) =
                if left >= right { (2 * node, of.start..middle) } else { (2 * node + 1, middle..of.end) };
            return self.find(child, half, places).map(|(most, at)| (most + self.added[node], at));
        }
        let middle = usize::midpoint(of.start, of.end);
        let left = self.find(2 * node, of.start..middle, places);
        let right = self.find(2 * node + 1, middle..of.end, places);
        let found = left.max_by_first(right);
        found.map(|(most, at)| (most + self.added[node], at))
    }
}

trait MaxByFirst {
    fn max_by_first(self, other: Self) -> Self;
}

impl MaxByFirst for Option<(i128, usize)> {
    fn max_by_first(self, other: Self) -> Self {
        match (self, other) {
            (Some(a), Some(b)) => Some(if a.0 >= b.0 { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_found_as_by_looking_at_all() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..200 {
            let mut values: Vec<i128> = (0..random.usize(1..40)).map(|_| random.i128(-50..50)).collect();
            let mut tree = Highest::new(&values);
            for _ in 0..30 {
                let (places, amount) = (random.usize(0..=values.len()), random.i128(-20..20));
                values[..places].iter_mut().for_each(|value| *value += amount);
                tree.add_to_first(places, amount);
                let from = random.usize(0..values.len());
                let until = random.usize(from..=values.len());
                let found = tree.in_span(from..until);
                assert_eq!(
                    found.map(|(most, _)| most),
                    values[from..until].iter().copied().max(),
                    "seed {seed}, round {round}: {values:?}"
                );
                assert!(found.is_none_or(|(most, at)| (from..until).contains(&at) && values[at] == most));
            }
        }
    }
}
