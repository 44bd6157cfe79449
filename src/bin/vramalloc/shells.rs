//! `vramalloc completions` and `vramalloc man`: what shells and the manual know
//! of the command.

use std::fs;
use std::path::PathBuf;

use clap::{Command, ValueEnum, ValueHint};
use clap_complete::aot::{Shell, generate};

use super::output::{say, show};

#[derive(clap::Args)]
#[command(after_help = "\
scripts/install puts them where shells look. By hand, for bash:
  vramalloc completions bash > ~/.local/share/bash-completion/completions/vramalloc")]
pub(super) struct CompletionsArguments {
    /// The shell
    shell: Completed,
}

/// The shells that are known.
#[derive(Copy, Clone, ValueEnum)]
enum Completed {
    Bash,
    Zsh,
    Fish,
}

#[derive(clap::Args)]
pub(super) struct ManArguments {
    /// The folder, which must be there
    #[arg(value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

/// Prints what completes the command's arguments. Returns the exit status.
pub(super) fn completions(arguments: &CompletionsArguments, mut command: Command) -> u8 {
    let shell = match arguments.shell {
        Completed::Bash => Shell::Bash,
        Completed::Zsh => Shell::Zsh,
        Completed::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut command, "vramalloc", &mut text);
    show(&String::from_utf8_lossy(&text))
}

/// Writes a page for the command and each subcommand. Returns the exit status.
pub(super) fn man(arguments: &ManArguments, command: Command) -> u8 {
    let folder = &arguments.folder;
    let checked = fs::metadata(folder).and_then(|found| match found.is_dir() {
        true => Ok(()),
        false => Err(std::io::ErrorKind::NotADirectory.into()),
    });
    match checked.and_then(|()| clap_mangen::generate_to(command, folder)) {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("{}: {error}", folder.display()));
            1
        }
    }
}
