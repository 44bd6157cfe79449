//! The rules of OpenMetrics, as far as text without samples of several parts needs
//! them: https://prometheus.io/docs/specs/om/open_metrics_spec/.

use std::collections::{BTreeMap, BTreeSet};

/// Fails where a text breaks a rule.
#[track_caller]
pub(crate) fn check(text: &str) {
    if let Err(wrong) = checked(text) {
        panic!("{wrong}\n{text}");
    }
}

fn checked(text: &str) -> Result<(), String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?;
    if body.contains("# EOF") {
        return Err("# EOF before the end".to_owned());
    }
    let mut families: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut last = "";
    let mut series = BTreeSet::new();
    for line in body.lines() {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, name, value) = (words.next(), words.next(), words.next());
            let (Some(kind), Some(name), Some(value)) = (kind, name, value) else {
                return wrong("a comment");
            };
            if name != last && families.contains_key(name) {
                return wrong("a family in two parts");
            }
            last = name;
            if !families.entry(name).or_default().insert(kind) {
                return wrong("said twice");
            }
            let is_well = match kind {
                "TYPE" => value == "gauge",
                "UNIT" => name.ends_with(&format!("_{value}")),
                "HELP" => !value.contains(['\\', '\r']),
                _ => false,
            };
            if !is_well {
                return wrong("what is said of a family");
            }
            continue;
        }
        let (labels, number) = line.rsplit_once(' ').ok_or("no value")?;
        let (name, labels) = labels.split_once('{').unwrap_or((labels, "}"));
        if name != last || !families.get(name).is_some_and(|said| said.contains("TYPE")) {
            return wrong("a sample outside of its family");
        }
        let is_name = |name: &str| {
            let mut chars = name.chars();
            chars
                .next()
                .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !is_name(name) || !number.parse::<f64>().is_ok_and(f64::is_finite) {
            return wrong("a name or a number");
        }
        let labels = labels_of(labels).ok_or_else(|| format!("labels: {line}"))?;
        let names: BTreeSet<&String> = labels.keys().collect();
        if !names.into_iter().all(|name| is_name(name)) {
            return wrong("a label");
        }
        if !series.insert((name.to_owned(), labels)) {
            return wrong("a sample twice");
        }
    }
    Ok(())
}

/// The labels before the closing brace, which ends the text.
fn labels_of(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    _ => return None,
                },
                (_, c) if c.is_control() => return None,
                (_, c) => value.push(c),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        rest = after.get(end + 1..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    (rest == "}").then_some(labels)
}

#[test]
fn what_breaks_a_rule_is_found() {
    let good = "# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes{b=\"\\\"\\n\",c=\"1\"} 1\n";
    assert_eq!(checked(&format!("{good}# EOF\n")), Ok(()));
    assert!(checked(good).is_err());
    for (from, to) in [
        ("bytes bytes", "bytes seconds"),
        ("gauge", "counter"),
        ("} 1", "} x"),
        ("\\n", "\\x"),
        ("c=", "b="),
        ("a_bytes{", "b_bytes{"),
        ("\"} 1\n", "\"} 1\na_bytes{c=\"1\",b=\"\\\"\\n\"} 2\n"),
        ("\"1\"", "\"1"),
    ] {
        let bad = format!("{}# EOF\n", good.replace(from, to));
        assert!(checked(&bad).is_err(), "{bad}");
    }
}
