//! Every case of `docs/testing/faults.toml` has a test that is there, or a reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    test: Vec<String>,
    cannot: Option<String>,
    later: Option<String>,
}

/// The cases that the operator has to answer for.
const DUE: [&str; 17] = [
    "C101", "C102", "C104", "C107", "C108", "C109", "C110", "C111", "C112", "C114", "C155", "C157", "C161", "C162",
    "C166", "N236", "N237",
];

fn check(cases: &BTreeMap<String, Case>, root: &Path) -> anyhow::Result<usize> {
    for id in DUE {
        ensure!(cases.contains_key(id), "{id} is missing");
    }
    let mut tests = 0;
    for (id, case) in cases {
        ensure!(!case.test.is_empty() || case.cannot.is_some() || case.later.is_some(), "{id} says nothing");
        for test in &case.test {
            let (file, function) =
                test.split_once("::").with_context(|| format!("{id}: {test} is no <file>::<function>"))?;
            let source = fs::read_to_string(root.join(file)).with_context(|| format!("{id}: no file {file}"))?;
            let named = source.match_indices(&format!("fn {function}(")).next();
            let (at, _) = named.with_context(|| format!("{id}: {file} has no function {function}"))?;
            // its attributes: the lines right before it
            let mut before = source[..at].lines().rev().skip(usize::from(!source[..at].ends_with('\n')));
            let is_test = before
                .by_ref()
                .take_while(|line| line.trim_start().starts_with(['#', '/']))
                .any(|l| l.contains("test]") || l.contains("test("));
            ensure!(is_test, "{id}: {function} is no test");
            tests += 1;
        }
    }
    Ok(tests)
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn every_case_has_a_test_that_is_there_or_a_reason() -> anyhow::Result<()> {
    let text = fs::read_to_string(root().join("docs/testing/faults.toml"))?;
    let tests = check(&toml::from_str(&text)?, root())?;
    println!("{tests} tests named");
    Ok(())
}

#[test]
fn a_test_that_is_not_there_is_noticed() {
    let all = |line: &str| DUE.map(|id| format!("[{id}]\n{line}\n")).concat();
    let complaint = |line: &str| {
        let cases = toml::from_str(&all(line)).unwrap();
        check(&cases, root()).unwrap_err().to_string()
    };
    assert!(complaint(r#"test = ["e2e/tests/faults.rs::nobody_wrote_this"]"#).contains("no function"));
    assert!(complaint(r#"test = ["e2e/tests/operator.rs::policy"]"#).contains("is no test"));
    assert!(complaint(r#"test = ["e2e/tests/nowhere.rs::x"]"#).contains("no file"));
    assert!(complaint("").contains("says nothing"));
}
