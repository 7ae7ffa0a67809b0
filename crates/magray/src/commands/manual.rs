//! `magray completions` and `magray man`: what shells and `man` need to know of the command line.
//! Installs nothing.

use std::{fs, io, path::PathBuf};

use clap::Args;
use clap_complete::Shell;

use super::Context;
use crate::{
    exit::Failure,
    output::{self, OutputError},
};

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  magray completions bash > ~/.local/share/bash-completion/completions/magray
  magray completions zsh > ~/.zfunc/_magray          with fpath+=~/.zfunc before compinit in ~/.zshrc
  magray completions fish > ~/.config/fish/completions/magray.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  magray man ~/.local/share/man/man1      then: man magray, man magray-embed";

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell: bash, zsh, fish, elvish or powershell
    #[arg(value_enum, hide_possible_values = true)]
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Folder to write the pages into, one a command; it is created
    folder: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "magray", &mut script);
    Ok(output::print(&String::from_utf8_lossy(&script))?)
}

pub(crate) fn man(args: &ManArgs, command: clap::Command, context: &Context) -> Result<(), Failure> {
    let write = || {
        fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(command, &args.folder)
    };
    write().map_err(|reason: io::Error| OutputError::Create { path: args.folder.clone(), reason })?;
    context.console.note(format_args!("wrote the pages of all commands into {}", args.folder.display()));
    Ok(())
}
