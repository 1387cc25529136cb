//! The house stays as it is drawn: who knows whom, what is promised and tested, what the documents name.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

type Outcome = Result<(), Box<dyn Error>>;

/// The root of the workspace.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root.pop();
    root
}

/// Fails with all the faults at once, so that one run shows all there is to mend.
#[track_caller]
fn none_of(what: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{what}, {} in all:\n  {}\n", faults.len(), faults.join("\n  "));
}

// ---------------------------------------------------------------------------------------------------------------------
// Who may know whom

/// A crate of the workspace, and what it may depend on outside its tests.
struct Room {
    name: &'static str,
    inside: May,
    outside: May,
}

/// Which crates may be known.
enum May {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
    All,
}

impl May {
    fn know(&self, name: &str) -> bool {
        match self {
            Self::Only(names) => names.contains(&name),
            Self::AllBut(names) => !names.contains(&name),
            Self::All => true,
        }
    }
}

/// What belongs to a command and to nothing that others link.
const A_COMMANDS: &[&str] = &["clap", "anyhow", "ratatui", "crossterm"];

/// The plan. A row may stand before its crate does.
const HOUSE: &[Room] = &[
    // Decides, and no more: no runtime, no clock, no lock, no log.
    Room { name: "tidegate-core", inside: May::Only(&[]), outside: May::Only(&["thiserror"]) },
    Room { name: "tidegate", inside: May::Only(&["tidegate-core"]), outside: May::AllBut(A_COMMANDS) },
    // Backends: the contract, never a primitive, never each other.
    Room { name: "tidegate-redis", inside: May::Only(&["tidegate-core"]), outside: May::AllBut(A_COMMANDS) },
    Room {
        name: "tidegate-postgres",
        inside: May::Only(&["tidegate-core"]),
        outside: May::AllBut(A_COMMANDS),
    },
    Room { name: "tidegate-sqlite", inside: May::Only(&["tidegate-core"]), outside: May::AllBut(A_COMMANDS) },
    // Integrations: the primitives, on whatever store.
    Room { name: "tidegate-tower", inside: May::Only(&["tidegate"]), outside: May::AllBut(A_COMMANDS) },
    Room { name: "tidegate-reqwest", inside: May::Only(&["tidegate"]), outside: May::AllBut(A_COMMANDS) },
    // Instruments.
    Room {
        name: "tidegate-testkit",
        inside: May::Only(&["tidegate-core"]),
        outside: May::AllBut(A_COMMANDS),
    },
    Room {
        name: "tidegate-sim",
        inside: May::Only(&["tidegate-core", "tidegate"]),
        outside: May::AllBut(A_COMMANDS),
    },
    // Programs: nobody links them, so they may know all.
    Room { name: "tidegate-fleet", inside: May::All, outside: May::All },
    Room { name: "tidegate-cli", inside: May::All, outside: May::All },
];

/// What is wrong with a crate that depends on `dependencies`.
fn trespasses(house: &[Room], name: &str, dependencies: &[&str]) -> Vec<String> {
    let Some(room) = house.iter().find(|room| room.name == name) else {
        return vec![format!(
            "{name} has no row in HOUSE: add one that says which crates of the workspace it may know, and which others"
        )];
    };
    let is_inside = |dependency: &str| dependency == "tidegate" || dependency.starts_with("tidegate-");
    dependencies
        .iter()
        .filter(|&&dependency| {
            let may = if is_inside(dependency) { &room.inside } else { &room.outside };
            !may.know(dependency)
        })
        .map(|dependency| format!("{name} may not know {dependency}: see its row in HOUSE"))
        .collect()
}

#[test]
fn the_layering_is_as_drawn() -> Outcome {
    // Without dependencies of dependencies, so nothing is resolved and nothing is fetched.
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec()?;
    let mut faults = Vec::new();
    for package in metadata.workspace_packages() {
        let dependencies: Vec<&str> = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind != DependencyKind::Development)
            .map(|dependency| dependency.name.as_str())
            .collect();
        faults.extend(trespasses(HOUSE, package.name.as_str(), &dependencies));
    }
    none_of("crates that know what they should not", &faults);
    Ok(())
}

#[test]
fn a_crate_that_knows_too_much_is_found() {
    assert!(trespasses(HOUSE, "tidegate-core", &["thiserror"]).is_empty());
    assert_eq!(trespasses(HOUSE, "tidegate-core", &["tokio", "tidegate"]).len(), 2);
    assert!(trespasses(HOUSE, "tidegate", &["tidegate-core", "tokio"]).is_empty());
    assert_eq!(trespasses(HOUSE, "tidegate", &["tidegate-redis", "tidegate-testkit", "clap"]).len(), 3);
    assert_eq!(trespasses(HOUSE, "tidegate-redis", &["tidegate", "tidegate-postgres"]).len(), 2);
    assert_eq!(trespasses(HOUSE, "tidegate-tower", &["tidegate", "tidegate-redis"]).len(), 1);
    assert!(trespasses(HOUSE, "tidegate-cli", &["clap", "anyhow", "tidegate-redis"]).is_empty());
    assert!(trespasses(HOUSE, "tidegate-attic", &[])[0].contains("has no row"));
}

// ---------------------------------------------------------------------------------------------------------------------
// What is promised is tested

/// The sections of `docs/guarantees.md`, and how many rules each has.
const SECTIONS: [(&str, u32); 9] =
    [("ST", 21), ("RU", 5), ("AS", 16), ("VA", 11), ("CB", 12), ("CO", 6), ("UN", 8), ("OB", 3), ("BI", 5)];

/// The name of a rule, as in `AS-1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rule {
    section: &'static str,
    number: u32,
}

impl Rule {
    /// Reads `AS-1`, and nothing else.
    fn parse(text: &str) -> Option<Self> {
        let (section, number) = text.split_once('-')?;
        Self::from_parts(section, number)
    }

    /// The rule that a test is named by: `as_1_decrease_...`, or `AS-1 ...` for a trial of the conformance kit.
    fn of_test(name: &str) -> Option<Self> {
        let (section, rest) = name.split_once(['_', '-'])?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(digits);
        if name.as_bytes()[section.len()] == b'_' {
            // `as_1` alone says nothing of what it shows.
            let is_snake =
                rest.len() > 1 && rest.starts_with('_') && section.chars().all(|c| c.is_ascii_lowercase());
            return is_snake.then(|| Self::from_parts(&section.to_ascii_uppercase(), number)).flatten();
        }
        Self::from_parts(section, number)
    }

    fn from_parts(section: &str, number: &str) -> Option<Self> {
        let (section, _) = SECTIONS.into_iter().find(|(known, _)| *known == section)?;
        let is_plain = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
        let number = number.parse().ok().filter(|_| is_plain)?;
        Some(Self { section, number })
    }

    /// How its tests begin, as in `as_1_`.
    fn prefix(self) -> String {
        format!("{}_{}_", self.section.to_ascii_lowercase(), self.number)
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.section, self.number)
    }
}

/// What the last column says of a rule.
#[derive(PartialEq, Eq, Debug)]
enum Held {
    By(Vec<String>),
    ByNoneNamed,
    NotYetBuilt,
}

impl Held {
    fn parse(cell: &str) -> Option<Self> {
        match cell {
            "—" => Some(Self::ByNoneNamed),
            "not yet built" => Some(Self::NotYetBuilt),
            names => names
                .split(',')
                .map(|name| {
                    let name = name.trim().strip_prefix('`')?.strip_suffix('`')?;
                    (!name.is_empty() && !name.contains('`')).then(|| name.to_owned())
                })
                .collect::<Option<_>>()
                .map(Self::By),
        }
    }
}

/// The rules of a page, and what could not be read of it.
fn guarantees(page: &str) -> (Vec<(Rule, Held)>, Vec<String>) {
    let mut rules = Vec::new();
    let mut faults = Vec::new();
    for (line, text) in (1..).zip(page.lines()).filter(|(_, text)| text.starts_with('|')) {
        let cells: Vec<&str> = text.trim().trim_matches('|').split('|').map(str::trim).collect();
        let is_rule_off = cells.iter().all(|cell| !cell.is_empty() && cell.bytes().all(|b| b == b'-'));
        if is_rule_off || cells == ["rule", "what is guaranteed", "test"] {
            continue;
        }
        let row = match cells[..] {
            [rule, sentence, held] if !sentence.is_empty() => Rule::parse(rule).zip(Held::parse(held)),
            _ => None,
        };
        match row {
            Some(row) => rules.push(row),
            None => faults.push(format!("line {line} is no `| rule | what is guaranteed | test |`: {text}")),
        }
    }
    (rules, faults)
}

/// Rules that are missing, twice there, or not in `sections` at all.
fn gaps(rules: &[(Rule, Held)], sections: &[(&'static str, u32)]) -> Vec<String> {
    let mut times: BTreeMap<Rule, usize> = sections
        .iter()
        .flat_map(|&(section, count)| (1..=count).map(move |number| (Rule { section, number }, 0)))
        .collect();
    let mut faults = Vec::new();
    for (rule, _) in rules {
        match times.get_mut(rule) {
            Some(times) => *times += 1,
            None => faults.push(format!("{rule} is no rule that is known: a new one is counted in SECTIONS")),
        }
    }
    faults.extend(
        times.iter().filter(|&(_, times)| *times == 0).map(|(rule, _)| format!("{rule} has no line")),
    );
    faults.extend(
        times.iter().filter(|&(_, times)| *times > 1).map(|(rule, _)| format!("{rule} has two lines")),
    );
    faults
}

/// Rules without a test of their name, and tests that are named and do not exist.
fn untested(rules: &[(Rule, Held)], tests: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (rule, held) in rules {
        match held {
            Held::NotYetBuilt => {}
            Held::ByNoneNamed => {
                let there: Vec<String> = tests
                    .iter()
                    .filter(|test| Rule::of_test(test) == Some(*rule))
                    .map(|test| format!("`{test}`"))
                    .collect();
                faults.push(if there.is_empty() {
                    format!("{rule} has no test: write one whose name begins with `{}`", rule.prefix())
                } else {
                    format!("{rule} names no test, but there is {}", there.join(", "))
                });
            }
            Held::By(names) => {
                let missing = names.iter().filter(|name| !tests.contains(*name));
                faults.extend(missing.map(|name| format!("{rule} names `{name}`, which does not exist")));
                if !names.iter().any(|name| Rule::of_test(name) == Some(*rule)) {
                    faults.push(format!("{rule} names no test that begins with `{}`", rule.prefix()));
                }
            }
        }
    }
    faults
}

/// The functions that a source file defines. One that is commented out is none.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let mut rest = line.trim_start();
        while let Some(shorter) = ["pub ", "pub(crate) ", "pub(super) ", "async ", "const "]
            .iter()
            .find_map(|word| rest.strip_prefix(word))
        {
            rest = shorter;
        }
        let name = rest.strip_prefix("fn ")?;
        Some(&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_')?])
    })
}

/// The trials that the conformance kit gives its own names, as in `"ST-1 is atomic"`.
fn trials(source: &str) -> impl Iterator<Item = &str> {
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .filter(|text| Rule::of_test(text).is_some())
}

/// Every test of the workspace by name, and a few functions that are none: no rule has a name like theirs.
fn tests_of_the_workspace() -> io::Result<BTreeSet<String>> {
    let here = Path::new(file!()).file_name();
    let mut tests = BTreeSet::new();
    for path in files()? {
        let is_code = path.starts_with("crates") || path.starts_with("examples");
        // This file speaks of tests that do not exist.
        if !is_code || path.extension() != Some(OsStr::new("rs")) || path.file_name() == here {
            continue;
        }
        let source = fs::read_to_string(root().join(&path))?;
        tests.extend(functions(&source).map(str::to_owned));
        if path.starts_with("crates/tidegate-testkit") {
            tests.extend(trials(&source).map(str::to_owned));
        }
    }
    Ok(tests)
}

#[test]
fn every_rule_of_guarantees_has_a_test_of_its_name() -> Outcome {
    let page = fs::read_to_string(root().join("docs/guarantees.md"))?;
    let (rules, mut faults) = guarantees(&page);
    faults.extend(gaps(&rules, &SECTIONS));
    faults.extend(untested(&rules, &tests_of_the_workspace()?));
    none_of("faults in docs/guarantees.md", &faults);
    Ok(())
}

#[test]
fn a_page_of_guarantees_is_read_as_written() {
    let page = "\
# Words | and a bar

| rule | what is guaranteed | test |
|---|---|---|
| AS-1 | It falls. | `as_1_falls`, `as_1_falls_once` |
| AS-2 | It rises. | — |
| CB-12 | It has options. | not yet built |
";
    let (rules, faults) = guarantees(page);
    let as_ = |number| Rule { section: "AS", number };
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(
        rules,
        [
            (as_(1), Held::By(vec!["as_1_falls".into(), "as_1_falls_once".into()])),
            (as_(2), Held::ByNoneNamed),
            (Rule { section: "CB", number: 12 }, Held::NotYetBuilt),
        ]
    );

    for bad in [
        "| AS-1 | It falls. | as_1_falls |",
        "| AS-1 | It falls. |",
        "| AS-1 | | — |",
        "| AS-1 | It falls. | `as_1_falls`, |",
        "| AS-01 | It falls. | — |",
        "| as-1 | It falls. | — |",
        "| XX-1 | It falls. | — |",
        "| AS-1 | It falls. | later |",
    ] {
        let (rules, faults) = guarantees(bad);
        assert!(rules.is_empty() && faults.len() == 1, "{bad} was taken for a rule");
    }
}

#[test]
fn a_deleted_or_doubled_line_is_found() {
    let rules = |numbers: &[u32]| -> Vec<(Rule, Held)> {
        numbers.iter().map(|&number| (Rule { section: "OB", number }, Held::NotYetBuilt)).collect()
    };
    let sections = [("OB", 3)];
    assert!(gaps(&rules(&[1, 2, 3]), &sections).is_empty());
    assert_eq!(gaps(&rules(&[1, 3]), &sections), ["OB-2 has no line"]);
    assert_eq!(gaps(&rules(&[1, 2]), &sections), ["OB-3 has no line"]);
    assert_eq!(gaps(&rules(&[1, 2, 3, 3]), &sections), ["OB-3 has two lines"]);
    assert_eq!(gaps(&rules(&[1, 2, 3, 4]), &sections).len(), 1);
}

#[test]
fn a_rule_without_a_test_is_found() {
    let tests: BTreeSet<String> =
        ["as_1_falls", "as_10_closes", "helper", "ST-1 is atomic"].map(str::to_owned).into();
    let faults = |rule: &str, held: &str| {
        untested(&[(Rule::parse(rule).unwrap(), Held::parse(held).unwrap())], &tests).join("; ")
    };
    assert_eq!(faults("AS-1", "`as_1_falls`"), "");
    assert_eq!(faults("AS-1", "`as_1_falls`, `helper`"), "");
    assert_eq!(faults("ST-1", "`ST-1 is atomic`"), "");
    assert_eq!(faults("CB-1", "not yet built"), "");
    assert_eq!(faults("AS-1", "—"), "AS-1 names no test, but there is `as_1_falls`");
    assert_eq!(faults("AS-2", "—"), "AS-2 has no test: write one whose name begins with `as_2_`");
    assert_eq!(faults("AS-1", "`as_10_closes`"), "AS-1 names no test that begins with `as_1_`");
    assert_eq!(faults("AS-2", "`as_2_rises`"), "AS-2 names `as_2_rises`, which does not exist");
}

#[test]
fn tests_are_found_by_name() {
    let source = "
#[test]
fn as_1_falls() {}
    pub(crate) async fn st_2_one_clock<S: Store>(store: S) {
// fn as_2_is_commented_out() {}
let text = \"fn as_3_is_text()\"; // a string
type F = fn (u8);
";
    assert_eq!(functions(source).collect::<Vec<_>>(), ["as_1_falls", "st_2_one_clock"]);
    let source = "trial(\"ST-1 is atomic\", st_1), trial(\"and\", \"ST-10\")\n // \"ST-2\"";
    assert_eq!(trials(source).collect::<Vec<_>>(), ["ST-1 is atomic", "ST-10"]);

    assert_eq!(Rule::of_test("as_1_falls"), Rule::parse("AS-1"));
    assert_eq!(Rule::of_test("as_16_options"), Rule::parse("AS-16"));
    for other in ["as_1", "as_1_", "as_1st_try", "AS_1_falls", "as_x_falls", "has_1_thing", "as", "", "as_"] {
        assert_eq!(Rule::of_test(other), None, "{other}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What the documents name is there

/// The links of a Markdown page to other files of the project, without their fragments.
fn links(page: &str) -> Vec<String> {
    let mut text = String::new();
    let mut is_code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            // What stands between backticks is no link.
            text.extend(line.split('`').step_by(2));
            text.push('\n');
        }
    }
    let inline = [("](", ')'), ("href=\"", '"'), ("src=\"", '"')].into_iter().flat_map(|(before, after)| {
        text.split(before).skip(1).filter_map(move |rest| rest.split(after).next()).collect::<Vec<_>>()
    });
    let defined = text
        .lines()
        .filter(|line| line.starts_with('['))
        .filter_map(|line| line.split_once("]: ").map(|(_, target)| target));
    inline
        .chain(defined)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_start_matches('<').trim_end_matches('>'))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .filter_map(|target| target.split('#').next())
        .filter(|target| !target.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The path of a link within the project, or nothing where it leads out of it.
fn within_the_project(page: &Path, link: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in page.parent()?.join(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => path.pop().then_some(())?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[test]
fn the_readme_and_docs_name_files_that_exist() -> Outcome {
    let mut faults = Vec::new();
    for page in files()? {
        let is_at_the_root = page.components().count() == 1;
        if page.extension() != Some(OsStr::new("md")) || !(is_at_the_root || page.starts_with("docs")) {
            continue;
        }
        for link in links(&fs::read_to_string(root().join(&page))?) {
            if !within_the_project(&page, &link).is_some_and(|path| root().join(path).exists()) {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    none_of("links to files that are not there", &faults);
    Ok(())
}

#[test]
fn links_are_found_in_a_page() {
    let page = "
[one](a.md) and [`two`](b.md#part \"title\"), ![three](<c.svg>) `[not](d.md)`
[out](https://example.com/x) [here](#part) [mail](mailto:a@example.com)
<img src=\"e.svg\"> <a href=\"f.md\">f</a>
```text
[not](g.md)
```
[six]: h.md
";
    let mut found = links(page);
    found.sort();
    assert_eq!(found, ["a.md", "b.md", "c.svg", "e.svg", "f.md", "h.md"]);

    let page = Path::new("docs/page.md");
    assert_eq!(within_the_project(page, "../README.md"), Some("README.md".into()));
    assert_eq!(within_the_project(page, "./a/b.md"), Some("docs/a/b.md".into()));
    assert_eq!(within_the_project(page, "../../other/README.md"), None);
    assert_eq!(within_the_project(page, "/etc/hosts"), None);
}

// ---------------------------------------------------------------------------------------------------------------------
// The project stands alone

/// The files of the project, as paths from its root: what git keeps or would keep, else what lies there.
fn files() -> io::Result<Vec<PathBuf>> {
    let root = root();
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default(); // git is not needed to test what was unpacked from an archive
    let mut files: Vec<PathBuf> =
        listed.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    if files.is_empty() {
        files = walk(&root)?;
    }
    files.retain(|path| root.join(path).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// The files under `root`, without what is built and what git keeps for itself.
fn walk(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                files.extend(path.strip_prefix(root).map(Path::to_owned));
            } else if entry.file_name() != "target" && entry.file_name() != ".git" {
                folders.push(path);
            }
        }
    }
    Ok(files)
}

/// Folders of one machine or another. Written in two parts, so that this file does not name them.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/"), concat!("/", "Users/")];

/// Hosts of package registries, and a folder next to the project.
const NAMES: [&str; 6] = [
    concat!("..", "/shared"),
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("npmjs", ".org"),
    concat!("rubygems", ".org"),
    concat!("proxy.golang", ".org"),
];

/// What cargo writes for a crate of its default registry, and nothing else may be read from.
const DEFAULT_REGISTRY: &str = concat!("\"registry+https://github.com/rust-lang/crates", ".io-index\"");

/// What a text names that only its author has.
fn outside_the_project(text: &str) -> Vec<&'static str> {
    let starts_a_path = |at: usize| {
        // As a part of a longer path the folder is anybody's.
        !text[..at].ends_with(|c: char| c.is_alphanumeric() || "._-~})*".contains(c))
    };
    let paths =
        MACHINE_PATHS.into_iter().filter(|path| text.match_indices(path).any(|(at, _)| starts_a_path(at)));
    paths.chain(NAMES.into_iter().filter(|name| text.contains(name))).collect()
}

#[test]
fn nothing_reads_outside_the_project() -> Outcome {
    let mut faults = Vec::new();
    for path in files()? {
        let bytes = fs::read(root().join(&path))?;
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if path.file_name() == Some(OsStr::new("Cargo.lock")) {
            text = text.replace(DEFAULT_REGISTRY, "");
        }
        for (line, text) in (1..).zip(text.lines()) {
            faults.extend(
                outside_the_project(text)
                    .iter()
                    .map(|name| format!("{}:{line} names {name}", path.display())),
            );
        }
    }
    none_of("files that name what only their author has", &faults);
    Ok(())
}

#[test]
fn what_lies_outside_is_found() {
    let [work, root, ..] = MACHINE_PATHS;
    assert_eq!(outside_the_project(&format!("cd {work}x")), [work]);
    assert_eq!(outside_the_project(&format!("{root}.cargo")), [root]);
    assert_eq!(outside_the_project(&format!("file://{work}x and \"{root}y\"")), [work, root]);
    assert_eq!(outside_the_project(&format!("see a{work}x and {{dir}}{work}y")), Vec::<&str>::new());
    for name in NAMES {
        assert_eq!(outside_the_project(&format!("from {name}/x")), [name]);
    }
}
