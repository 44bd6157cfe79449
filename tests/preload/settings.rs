//! Risk: a bad setting breaks a program, or goes unnoticed.

use crate::stage::{Kind, Run};

#[test]
fn a_bad_value_is_told_once_and_harms_nothing() {
    for kind in Kind::ALL {
        let bare = Run::bare("basics", kind).go();
        let outcome = Run::preloaded("basics", kind)
            .conf("limit:12Q,strategy:best,colour:red")
            .env("VRAMALLOC_FREE_SYNC", "sometimes")
            .go();
        assert_eq!(outcome.code(), 0, "{}", outcome.what);
        assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
        let told = outcome.said();
        assert_eq!(told.len(), 4, "{told:?}");
        for (key, value) in [
            ("limit", "12Q"),
            ("strategy", "best"),
            ("colour", "red"),
            ("FREE_SYNC", "sometimes"),
        ] {
            let matching = told.iter().filter(|line| {
                line.starts_with("vramalloc: ") && line.contains(key) && line.contains(value)
            });
            assert_eq!(matching.count(), 1, "{key} in {told:?}");
        }
        let stats = outcome.stats();
        assert_eq!(stats["warnings"].as_array().unwrap().len(), 4);
        assert_eq!(stats["options"]["strategy"]["value"], "auto_growth");
    }
}

#[test]
fn statistics_that_cannot_be_written_are_told_once() {
    for path in ["/no-such-folder/vramalloc.json", "/dev/null/vramalloc.json"] {
        for kind in Kind::ALL {
            let bare = Run::bare("basics", kind).go();
            let outcome = Run::preloaded("basics", kind)
                .env("VRAMALLOC_STATS", path)
                .go();
            assert_eq!(outcome.code(), 0, "{}", outcome.what);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            let told = outcome.said();
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told.iter().all(|line| line.contains(path)), "{told:?}");
            assert!(outcome.written.is_empty(), "{}", outcome.what);
        }
    }
}

#[test]
fn statistics_go_where_they_are_sent() {
    let off = Run::preloaded("basics", Kind::Dynamic)
        .env("VRAMALLOC_STATS", "off")
        .go();
    off.quiet(0);
    assert!(off.written.is_empty(), "{:?}", off.written.keys());

    let named = Run::preloaded("basics", Kind::Dynamic)
        .env("VRAMALLOC_STATS", "vramalloc.%r.%%.%e.json")
        .env("RANK", "5")
        .go();
    named.stats();
    let name = named.written.keys().next().unwrap();
    assert_eq!(name, "vramalloc.5.%.basics.dynamic.json");

    let shown = Run::preloaded("basics", Kind::Dynamic)
        .env("VRAMALLOC_STATS", "stderr")
        .go();
    assert_eq!(shown.code(), 0);
    assert!(shown.written.is_empty(), "{:?}", shown.written.keys());
    let value: serde_json::Value = serde_json::from_str(&shown.said().join("\n")).unwrap();
    assert_eq!(value["schema"], 1);
}
