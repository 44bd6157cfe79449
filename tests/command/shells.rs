//! What shells and the manual know of the command.

use std::fs;
use std::process::Command;

use crate::{Place, output};

#[test]
fn shells_complete_subcommands_flags_and_values() {
    let place = Place::new("completions");
    for (shell, check) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
        let (code, script, errors) = output(place.command(&["completions", shell]));
        assert_eq!((code, &*errors), (Some(0), ""));
        for part in ["doctor", "report", "free-sync", "naive_best_fit"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
        let file = place.path(shell);
        fs::write(&file, script).unwrap();
        // A shell that is not here cannot say whether it reads that.
        if let Ok(status) = Command::new(check).arg("-n").arg(file).status() {
            assert!(status.success(), "{shell}");
        }
    }
    let script = ". ./bash; COMP_WORDS=(vramalloc run --strategy a); COMP_CWORD=3; \
                  _vramalloc vramalloc a --strategy; echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).current_dir(&place.directory);
    let (_, out, errors) = output(bash);
    assert_eq!(out, "auto_growth\n", "{errors}");
}

#[test]
fn every_subcommand_has_a_page_in_the_manual() {
    let place = Place::new("man");
    fs::create_dir(place.path("pages")).unwrap();
    let (code, _, errors) = output(place.command(&["man", "pages"]));
    assert_eq!((code, &*errors), (Some(0), ""));
    let (_, help, _) = output(place.command(&["--help"]));
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        let page = fs::read_to_string(place.path(&format!("pages/vramalloc-{name}.1")));
        assert!(page.unwrap().contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(place.path("pages/vramalloc.1").exists());
    let (code, _, errors) = output(place.command(&["man", "nowhere"]));
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("vramalloc: nowhere: "), "{errors}");
}
