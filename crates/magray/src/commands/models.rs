//! `magray models`: what is in the store, `rm` to remove from it, and which models a running server serves.
//! Never touches a model that was given as a folder.

use clap::{Args, Subcommand};
use magray_engine::store::{NameError, Store, StoreError, StoredModel};

use super::{
    Context,
    gpu::{moves::pick, status::unexpected},
};
use crate::{
    config::Config,
    control::{Reply, Request, running},
    exit::Failure,
    model::megabytes,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray models                             the same as: magray models list
  magray models list --json
  magray models rm all-MiniLM-L6-v2
  magray pull BAAI/bge-small-en-v1.5 && magray models load BAAI/bge-small-en-v1.5
  magray models alias text-embedding-3-small BAAI/bge-small-en-v1.5
  magray models unload BAAI/bge-small-en-v1.5

`load`, `unload` and `alias` are for the server that runs. No request for another model fails by them; requests that a model \
has taken are answered before it is unloaded or removed.";

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
    /// Remove a model from the store; servers that run unload it first
    Rm {
        /// Its name as `magray models` shows it
        name: String,
    },
    /// Let a running server serve a model of the store
    Load {
        /// Its name as `magray models` shows it
        name: String,
        #[command(flatten)]
        engine: ServerArgs,
    },
    /// Let a running server serve a model no more; its files stay
    Unload {
        /// Its name as `magray gpu status` shows it
        name: String,
        #[command(flatten)]
        engine: ServerArgs,
    },
    /// Let another name mean a model of a running server
    Alias {
        /// The other name
        alias: String,
        /// The model that it means [default: none, the alias is removed]
        model: Option<String>,
        #[command(flatten)]
        engine: ServerArgs,
    },
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// The process id, where several servers run
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

pub(crate) fn run(args: &ModelsArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    let store = Store::open(config.model()?.store);
    let as_json = match &args.action {
        Some(ModelsAction::Rm { name }) => {
            for server in running(&config.control_folders()) {
                // One that does not serve it has nothing to unload.
                let _ = server.ask(&Request::Unload { model: name.clone() });
            }
            return remove(name, &store, context);
        }
        Some(ModelsAction::Load { name, engine }) => {
            return change(&config, engine, &Request::Load { model: name.clone() });
        }
        Some(ModelsAction::Unload { name, engine }) => {
            return change(&config, engine, &Request::Unload { model: name.clone() });
        }
        Some(ModelsAction::Alias { alias, model, engine }) => {
            return change(&config, engine, &Request::Alias { alias: alias.clone(), model: model.clone() });
        }
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

/// Lets a server change which models it serves, and prints those.
fn change(config: &Config, engine: &ServerArgs, request: &Request) -> Result<(), Failure> {
    let server = pick(config, engine.pid)?.running;
    match server.ask(request)? {
        Reply::Served(models) => Ok(output::print(&format!("serving {}\n", models.join(", ")))?),
        other => Err(unexpected(server.pid, &other).into()),
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
