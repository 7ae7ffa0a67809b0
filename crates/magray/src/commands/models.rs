//! `magray models`: what is in the store, and `rm` to remove from it.
//! Never touches a model that was given as a folder.

use clap::{Args, Subcommand};
use magray_engine::store::{NameError, Store, StoreError, StoredModel};

use super::Context;
use crate::{
    exit::Failure,
    model::megabytes,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray models                             the same as: magray models list
  magray models list --json
  magray models rm all-MiniLM-L6-v2";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    action: Option<ModelsAction>,
    /// Print one JSON object a model
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ModelsAction {
    /// List the models of the store
    List {
        /// Print one JSON object a model
        #[arg(long)]
        json: bool,
    },
    /// Remove a model from the store
    Rm {
        /// Its name as `magray models` shows it
        name: String,
    },
}

pub(crate) fn run(args: &ModelsArgs, context: &Context) -> Result<(), Failure> {
    let settings = context.settle(&[])?.model()?;
    let store = Store::open(settings.store);
    let as_json = match &args.action {
        Some(ModelsAction::Rm { name }) => return remove(name, &store, context),
        Some(ModelsAction::List { json }) => *json,
        None => args.json,
    };
    let models = store.list()?;
    if models.is_empty() {
        context.console.note(format_args!("no models in {}: `magray pull` brings one", store.root().display()));
    }
    Ok(output::print(&if as_json { json(&models) } else { table(&models) })?)
}

fn remove(name: &str, store: &Store, context: &Context) -> Result<(), Failure> {
    match store.remove(name) {
        Err(StoreError::NotStored { .. } | StoreError::Name(NameError::NoOrganisation { .. })) => {
            let there: Vec<String> = store.list()?.into_iter().map(|model| model.name).collect();
            let there = if there.is_empty() { "no model".to_owned() } else { there.join(", ") };
            Err(Failure::NotStored { name: name.to_owned(), there })
        }
        removed => {
            removed?;
            context.console.note(format_args!("removed {name}"));
            Ok(())
        }
    }
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
