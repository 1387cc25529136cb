//! A listener that keeps what it is told.

use std::{
    sync::Mutex,
    task::{Poll, Waker},
    time::Duration,
};

use tidegate_core::{Listener, Wake};

use crate::task::{lock, real_sleep};

/// What was pushed to one driver.
#[derive(Default)]
pub(crate) struct Hearing(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    wakes: Vec<Wake>,
    waiting: Vec<Waker>,
}

impl Listener for Hearing {
    fn wake(&self, wake: Wake) {
        let mut heard = lock(&self.0);
        heard.wakes.push(wake);
        heard.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Hearing {
    /// What it has heard.
    pub(crate) fn heard(&self) -> Vec<Wake> {
        lock(&self.0).wakes.clone()
    }

    /// What it has heard, which it forgets.
    pub(crate) fn take(&self) -> Vec<Wake> {
        std::mem::take(&mut lock(&self.0).wakes)
    }

    /// Waits until it has heard of this, for so much of real time at most.
    pub(crate) async fn within(&self, most: Duration, is_it: impl Fn(&Wake) -> bool + Send) -> Option<Wake> {
        let found = |heard: &Heard| heard.wakes.iter().find(|wake| is_it(wake)).cloned();
        if let Some(wake) = found(&lock(&self.0)) {
            return Some(wake);
        }
        let mut too_long = real_sleep(most);
        std::future::poll_fn(|context| {
            let mut heard = lock(&self.0);
            if let Some(wake) = found(&heard) {
                return Poll::Ready(Some(wake));
            }
            heard.waiting.push(context.waker().clone());
            drop(heard);
            too_long.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}
