//! The library that `vramalloc run` preloads, and others that are preloaded already.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use vramalloc_core::config::OPTIONS;

use super::{Place, output};

/// Two copies in one process get in each other's way, and one is enough.
#[test]
fn other_copies_are_left_out_and_told_of() {
    let place = Place::new("other-copies");
    let library = place.library();
    for (before, after, others) in [
        ("/a/x.so", ":/a/x.so", &[][..]),
        (&*library, "", &[]),
        (&*format!("./dummy.so:{library} /a/x.so"), ":/a/x.so", &[]),
        (
            "/old/libvramalloc.so.0:/a/x.so libvramalloc-0123.so",
            ":/a/x.so",
            &["/old/libvramalloc.so.0", "libvramalloc-0123.so"],
        ),
    ] {
        let mut run = place.run(&["--stats", "off"], "echo $LD_PRELOAD");
        run.env("LD_PRELOAD", before);
        let (_, out, errors) = output(run);
        assert_eq!(out, format!("{library}{after}\n"), "{before}");
        let told = errors.matches("another copy of the library").count();
        assert_eq!(told, others.len(), "{errors}");
        for other in others {
            let named = format!("LD_PRELOAD also named {other}, ");
            assert!(errors.contains(&named), "{errors}");
        }
    }
}

/// What the loader would not take, it says at each start, and goes on without: then no
/// limit would be in force.
#[test]
fn what_is_no_library_for_this_machine_is_not_preloaded() {
    let place = Place::new("no-library");
    let whole = fs::read(place.path("dummy.so")).unwrap();
    // The word size, the processor, and what kind of file it is.
    let with = |at: usize, byte: u8| {
        let mut changed = whole.clone();
        changed[at] = byte;
        changed
    };
    let not = "not a shared library";
    for (contents, why) in [
        (Vec::new(), not),
        (b"INPUT ( libvramalloc.so.0 )".to_vec(), not),
        (with(16, 2), not),
        (with(4, 1), "for another machine than "),
        (with(18, 0xf3), "for another machine than "),
    ] {
        fs::write(place.path("other.so"), contents).unwrap();
        for words in [&["run", "--library", "other.so"][..], &["run"]] {
            let mut run = place.command(words);
            run.args(["--stats", "off", "--", "touch", "started"]);
            if words.len() == 1 {
                run.env("VRAMALLOC_LIBRARY", "other.so");
            }
            let (code, _, errors) = output(run);
            assert_eq!(code, Some(2), "{errors}");
            assert!(errors.contains("other.so: "), "{errors}");
            assert!(errors.contains(why), "{errors}: {why}");
            assert!(!place.path("started").exists());
        }
    }
}

/// Each value of an option that has a flag of its own.
#[test]
fn flags_take_what_their_options_take() {
    let place = Place::new("flags");
    for (key, flag) in [("strategy", "--strategy"), ("free_sync", "--free-sync")] {
        let option = OPTIONS.iter().find(|option| option.key == key).unwrap();
        let values: Vec<&str> = option.accepted.split(", ").collect();
        assert!(values.len() > 2, "{}", option.accepted);
        for value in values {
            let script = format!("echo $VRAMALLOC_{}", key.to_uppercase());
            let (_, out, errors) = output(place.run(&[flag, value], &script));
            assert_eq!(out, format!("{value}\n"), "{errors}");
        }
    }
}

/// A path with a blank, or a word that the loader replaces, is preloaded by a link. Those of libraries that are gone are taken
/// away when the next is made, a day later: until then there may be an upgrade under way.
#[test]
fn old_links_that_lead_nowhere_are_taken_away() {
    let place = Place::new("links");
    let link_of = |folder: &str| {
        fs::create_dir(place.path(folder)).unwrap();
        let library = place.path(folder).join("libvramalloc.so");
        fs::copy(place.path("dummy.so"), &library).unwrap();
        let library = library.to_str().unwrap().to_owned();
        let words = ["run", "--library", &library, "--stats", "off", "--"];
        let mut run = place.command(&words);
        run.args(["sh", "-c", "echo $LD_PRELOAD"]);
        let (_, out, errors) = output(run);
        let link = PathBuf::from(out.trim());
        assert_eq!(
            fs::read_link(&link).unwrap().to_str(),
            Some(&*library),
            "{errors}"
        );
        link
    };
    let here = link_of("a folder");
    let folder = here.parent().unwrap().to_owned();
    let id = std::process::id();
    let named = |name: &str| folder.join(format!("libvramalloc-of-{id}-{name}.so"));
    for (name, to, age) in [
        ("gone", "/no/such/library", "2 days ago"),
        ("new", "/no/such/library", "2 hours ago"),
        ("there", "/dev/null", "2 days ago"),
    ] {
        let _ = fs::remove_file(named(name));
        symlink(to, named(name)).unwrap();
        let touched = Command::new("touch")
            .args(["-h", "-d", age])
            .arg(named(name))
            .status();
        assert!(touched.unwrap().success());
    }
    let there = link_of("$LIB");
    let is_there = |name| named(name).symlink_metadata().is_ok();
    assert_eq!(["gone", "new", "there"].map(is_there), [false, true, true]);
    for link in [here, there, named("new"), named("there")] {
        fs::remove_file(link).unwrap();
    }
}
