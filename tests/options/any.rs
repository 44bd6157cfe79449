//! Any environment at all.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use vramalloc_core::config::{Host, Loaded, OPTIONS, OptionRow, load, variable};
use vramalloc_parsers::valid;

fn row() -> impl Strategy<Value = &'static OptionRow> {
    prop::sample::select(OPTIONS.iter().collect::<Vec<_>>())
}

/// A value that an option may well be given, or anything else.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        any::<f64>().prop_map(|n| n.to_string().into_bytes()),
        any::<i128>().prop_map(|n| n.to_string().into_bytes()),
        "[0-9]{0,25}[.]?[0-9]{0,3} ?[kmgtKMGT]?i?[bB]?".prop_map(String::into_bytes),
        row().prop_map(|row| row.default_value().into_bytes()),
        "[%a-z/]{0,9}".prop_map(String::into_bytes),
        prop::sample::select(&["True", "False", "1", "0", "-1", "none", "native"][..])
            .prop_map(|text| text.as_bytes().to_vec()),
        (0u32..20).prop_map(|n| (1u64 << n).to_string().into_bytes()),
        "\\[((1|4|64|256|1024|32768|>):(0|1|2|8|16)[, ]?){0,4}\\]?".prop_map(String::into_bytes),
    ]
}

/// The name of a variable that is read, or nearly.
fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        row().prop_map(|row| variable(row).into_bytes()),
        row().prop_map(|row| format!("FLAGS_{}", row.key).into_bytes()),
        "(VRAMALLOC|PYTORCH_ALLOC|PYTORCH_CUDA_ALLOC)_CONF".prop_map(String::into_bytes),
        "PYTORCH_NO_CUDA_MEMORY_CACHING".prop_map(String::into_bytes),
        "VRAMALLOC_[A-Z_]{0,30}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #[test]
    fn any_environment_gives_a_valid_config(
        environment in prop::collection::vec((name(), value()), 0..8),
        entries in prop::collection::vec(
            (row(), value()), 0..6),
        (paddle, torch) in any::<(bool, bool)>(),
    ) {
        let mut conf = Vec::new();
        for (row, value) in entries {
            conf.extend_from_slice(row.key.as_bytes());
            conf.push(b':');
            conf.extend_from_slice(&value);
            conf.push(b',');
        }
        let environment: Vec<(OsString, OsString)> = environment
            .into_iter()
            .chain([(b"VRAMALLOC_CONF".to_vec(), conf)])
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect();
        let host = Host { paddle, torch };
        let loaded = load(environment.clone(), host);
        valid(&loaded.settings);
        // The order of the variables says nothing.
        let mut names = HashSet::new();
        if environment.iter().all(|(name, _)| names.insert(name)) {
            let backwards = load(environment.iter().rev().cloned(), host);
            prop_assert_eq!(&backwards.settings, &loaded.settings);
            prop_assert_eq!(&backwards.echo, &loaded.echo);
        }
        for warning in &loaded.warnings {
            prop_assert!(!warning.contains('\n'));
        }
        // What is echoed, given as options, is the same configuration.
        let again: Vec<(OsString, OsString)> = loaded
            .echo
            .iter()
            .map(|e| (format!("VRAMALLOC_{}", e.key.to_uppercase()).into(), (&e.value).into()))
            .collect();
        let again = load(again, host);
        prop_assert_eq!(&again.warnings, &Vec::<String>::new());
        prop_assert_eq!(&again.settings, &loaded.settings);
        let values = |loaded: &Loaded| -> Vec<(&str, String)> {
            loaded.echo.iter().map(|e| (e.key, e.value.clone())).collect()
        };
        prop_assert_eq!(values(&again), values(&loaded));
    }
}
