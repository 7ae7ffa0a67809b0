//! `magray models`: what is in the store, and `rm` to remove from it.
//! Never touches a model that was given as a folder.

use clap::{Args, Subcommand};
use magray_engine::store::{Store, StoredModel};

use super::Context;
use crate::{
    exit::Failure,
    model::megabytes,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray models
  magray models --json
  magray models rm all-MiniLM-L6-v2";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    action: Option<ModelsAction>,
    /// Print one JSON object a model
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ModelsAction {
    /// Remove a model from the store
    Rm {
        /// Its name as `magray models` shows it
        name: String,
    },
}

pub(crate) fn run(args: &ModelsArgs, context: &Context) -> Result<(), Failure> {
    let settings = context.settle(&[])?.model()?;
    let store = Store::open(settings.store);
    if let Some(ModelsAction::Rm { name }) = &args.action {
        store.remove(name)?;
        context.console.note(format_args!("removed {name}"));
        return Ok(());
    }
    let models = store.list()?;
    if models.is_empty() {
        context.console.note(format_args!("no models in {}: `magray pull` brings one", store.root().display()));
    }
    Ok(output::print(&if args.json { json(&models) } else { table(&models) })?)
}

fn table(models: &[StoredModel]) -> String {
    let cells = |model: &StoredModel| {
        let (size, source) = match &model.state {
            Ok(manifest) => (megabytes(manifest.bytes()), manifest.origin.source.to_string()),
            Err(damage) => (String::from("-"), format!("damaged: {damage}")),
        };
        vec![model.name.clone(), size, source, model.dir.display().to_string()]
    };
    aligned(&models.iter().map(cells).collect::<Vec<_>>())
}

fn json(models: &[StoredModel]) -> String {
    let line = |model: &StoredModel| {
        let manifest = model.state.as_ref().ok();
        let line = serde_json::json!({
            "name": model.name,
            "folder": model.dir.display().to_string(),
            "bytes": manifest.map(|manifest| manifest.bytes()),
            "source": manifest.map(|manifest| manifest.origin.source.to_string()),
            "revision": manifest.map(|manifest| manifest.origin.revision.clone()),
            "damage": model.state.as_ref().err().map(ToString::to_string),
        });
        format!("{line}\n")
    };
    models.iter().map(line).collect()
}
