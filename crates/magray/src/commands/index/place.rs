//! Where collections are: in a folder that this process opens, or at a server. Both are told the same JSON, that of
//! Qdrant's API.
//! Reads no documents and prints nothing.

use http::Method;
use magray_engine::engine::Work;
use magray_index::{Change, Collections, Error, Filter, Options, Selector, files::Chunk};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::pipeline::{Pipeline, vectors};

use crate::{
    commands::{Context, compute_args::ComputeArgs, compute_args::flag, server_args::ServerArgs},
    config::Config,
    exit::Failure,
    qdrant::{
        bm25::Terms,
        collections::{CreateCollection, Kept},
        points::Operation,
        query::{QueryRequest, ScrollBody},
        shown::{ShownRecord, ShownScored},
        vectors::{Document, Documents, Embedded},
    },
    remote::{Remote, RemoteError, portions},
    session::{Notices, Session},
    splitting::{chunk_size, split_by_tokens},
};

pub(crate) enum Place<'a> {
    Here(Box<Folder<'a>>),
    Server(Remote),
}

pub(crate) struct Folder<'a> {
    all: Collections,
    context: &'a Context,
    args: &'a ComputeArgs,
    /// Started with the first text.
    session: Option<Session>,
    pipeline: Pipeline,
    notices: Notices,
}

/// A collection, as far as commands have to know it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The model that embeds its texts, where one is remembered.
    pub(crate) model: Option<String>,
    /// The field of payloads whose words are found.
    pub(crate) text_field: Option<String>,
    pub(crate) points: u64,
    /// What another collection like it is made with.
    pub(crate) settings: Value,
}

/// What a new collection is made for.
pub(crate) struct NewModel {
    pub(crate) name: String,
    pub(crate) dimensions: usize,
}

impl<'a> Place<'a> {
    pub(crate) fn open(
        server: &ServerArgs,
        args: &'a ComputeArgs,
        config: &Config,
        context: &'a Context,
    ) -> Result<Self, Failure> {
        if let Some(remote) = server.remote(config) {
            return Ok(Self::Server(remote));
        }
        let folder = config.collections_folder();
        let folder = folder.ok_or_else(|| Failure::Usage("no folder for collections: set search.folder".to_owned()))?;
        let all = Collections::open(&folder, Options::default())?;
        let (session, pipeline, notices) = (None, Pipeline::default(), Notices::default());
        Ok(Self::Here(Box::new(Folder { all, context, args, session, pipeline, notices })))
    }

    pub(crate) fn names(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Here(folder) => Ok(folder.all.list()),
            Self::Server(remote) => {
                let result = ask(remote, &Method::GET, "/collections", None)?;
                let names = result["collections"].as_array().cloned().unwrap_or_default();
                Ok(names.iter().filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect())
            }
        }
    }

    /// `None`: there is no such collection.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Known>, Failure> {
        let shown = match self {
            Self::Here(folder) => match folder.all.get(name) {
                Err(Error::NotFound { .. }) => return Ok(None),
                found => {
                    let collection = found?;
                    let config = collection.config();
                    Kept::of(&config).shown(collection.count(None)?, config.text_field.as_deref(), |_| 0)
                }
            },
            Self::Server(remote) => match ask(remote, &Method::GET, &path(name, ""), None) {
                Err(Failure::Remote(RemoteError::Refused { status: 404, .. })) => return Ok(None),
                found => found?,
            },
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Ok(Some(Known {
            model: text(&shown["config"]["metadata"]["model"]),
            text_field: text(&shown["config"]["text_field"]),
            points: shown["points_count"].as_u64().unwrap_or(0),
            settings: settings_of(&shown["config"]),
        }))
    }

    /// The model that new collections are made for: that of the settings, or of the server.
    pub(crate) fn model(&mut self) -> Result<NewModel, Failure> {
        match self {
            Self::Here(folder) => folder.model(),
            Self::Server(remote) => {
                let reply = remote.send(&Method::GET, "/v1/models", None)?;
                let models: Value = serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?;
                let wanted = remote.model();
                let fits = |model: &&Value| match wanted {
                    Some(name) => model["id"] == name,
                    None => model["does"] == "embed",
                };
                let model = models["data"].as_array().and_then(|models| models.iter().find(fits));
                let read = |model: &Value| {
                    let dimensions = usize::try_from(model["outputs"].as_u64()?).ok()?;
                    Some(NewModel { name: model["id"].as_str()?.to_owned(), dimensions })
                };
                let missing = || remote.unexpected("it serves no such model that embeds");
                Ok(model.and_then(read).ok_or_else(missing)?)
            }
        }
    }

    pub(crate) fn create(&self, name: &str, settings: Value) -> Result<(), Failure> {
        match self {
            Self::Here(folder) => {
                let settings: CreateCollection = read(settings)?;
                folder.all.create(name, settings.into_config()?)?;
                Ok(())
            }
            Self::Server(remote) => ask(remote, &Method::PUT, &path(name, ""), Some(&settings)).map(drop),
        }
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), Failure> {
        let was_there = match self {
            Self::Here(folder) => folder.all.delete(name)?,
            Self::Server(remote) => ask(remote, &Method::DELETE, &path(name, ""), None)? == Value::Bool(true),
        };
        if was_there { Ok(()) } else { Err(Error::no_collection(name).into()) }
    }

    /// Adds or replaces points; a vector may be `{"text", "model"}`. They are stored when `finish` has returned.
    pub(crate) fn upsert(&mut self, name: &str, points: Vec<Value>) -> Result<(), Failure> {
        let body = json!({ "points": points });
        match self {
            Self::Here(folder) => folder.upsert(name, body),
            Self::Server(remote) => ask(remote, &Method::PUT, &path(name, "/points"), Some(&body)).map(drop),
        }
    }

    /// Ranked points.
    pub(crate) fn query(&mut self, name: &str, body: &Value) -> Result<Vec<Value>, Failure> {
        let found = match self {
            Self::Here(folder) => return folder.query(name, body.clone()),
            Self::Server(remote) => ask(remote, &Method::POST, &path(name, "/points/query"), Some(body))?,
        };
        Ok(found["points"].as_array().cloned().unwrap_or_default())
    }

    /// A page of points, and where the next begins.
    pub(crate) fn scroll(&self, name: &str, body: &Value) -> Result<(Vec<Value>, Value), Failure> {
        let page = match self {
            Self::Here(folder) => {
                let request: ScrollBody = read(body.clone())?;
                let page = folder.all.get(name)?.scroll(&request.into_request()?)?;
                return Ok((page.points.iter().map(|point| shown(&ShownRecord(point))).collect(), json!(page.next)));
            }
            Self::Server(remote) => ask(remote, &Method::POST, &path(name, "/points/scroll"), Some(body))?,
        };
        Ok((page["points"].as_array().cloned().unwrap_or_default(), page["next_page_offset"].clone()))
    }

    /// Points that meet a filter.
    pub(crate) fn count(&self, name: &str, filter: &Value) -> Result<u64, Failure> {
        match self {
            Self::Here(folder) => {
                let filter = Filter::from_json(filter)?;
                Ok(folder.all.get(name)?.count(Some(&filter))? as u64)
            }
            Self::Server(remote) => {
                let body = json!({ "filter": filter });
                let counted = ask(remote, &Method::POST, &path(name, "/points/count"), Some(&body))?;
                Ok(counted["count"].as_u64().unwrap_or(0))
            }
        }
    }

    /// Deletes the points that meet a filter.
    pub(crate) fn delete_points(&self, name: &str, filter: &Value) -> Result<(), Failure> {
        match self {
            Self::Here(folder) => {
                let filter = Filter::from_json(filter)?;
                Ok(folder.all.get(name)?.change(vec![Change::Delete(Selector::Filter(filter))])?)
            }
            Self::Server(remote) => {
                let body = json!({ "filter": filter });
                ask(remote, &Method::POST, &path(name, "/points/delete"), Some(&body)).map(drop)
            }
        }
    }

    /// The parts of a text for a model, by its tokens.
    pub(crate) fn split(&mut self, text: &str, model: &str) -> Result<Vec<Chunk>, Failure> {
        match self {
            Self::Here(folder) => {
                let session = folder.session(Some(model))?;
                let size = chunk_size(session.spec().max_tokens);
                split_by_tokens(text, size, |segments| segments.iter().map(|one| session.token_starts(one)).collect())
            }
            Self::Server(remote) => {
                let info = remote.send(&Method::GET, "/v1/models", None)?;
                let info: Value = serde_json::from_slice(&info.body).map_err(|error| remote.unexpected(error))?;
                let own = info["data"].as_array().and_then(|all| all.iter().find(|one| one["id"] == model));
                let max_tokens = own.and_then(|own| own["max_tokens"].as_u64()).unwrap_or(u64::MAX);
                let size = chunk_size(usize::try_from(max_tokens).unwrap_or(usize::MAX));
                split_by_tokens(text, size, |segments| {
                    let mut starts = Vec::with_capacity(segments.len());
                    for some in portions(segments) {
                        starts.extend(token_starts(remote, some, model)?);
                    }
                    Ok(starts)
                })
            }
        }
    }

    /// Waits until all points are stored.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Self::Here(mut folder) = self else { return Ok(()) };
        folder.pipeline.finish(folder.session.as_ref(), &folder.context.console)?;
        if let Some(session) = folder.session {
            session.leave();
        }
        Ok(())
    }
}

impl Folder<'_> {
    /// An engine with the model of the settings, or with that of the collection where none was named.
    fn session(&mut self, model: Option<&str>) -> Result<&mut Session, Failure> {
        if self.session.is_none() {
            let named = model.map(str::to_owned);
            let mut flags = self.args.flags();
            flags.extend(flag("model.name", self.args.model.is_none().then_some(named.as_ref()).flatten()));
            let config = self.context.settle(&flags)?;
            self.session = Some(Session::open(&config, None, &self.context.console)?);
        }
        Ok(self.session.get_or_insert_with(|| unreachable!("it was opened")))
    }

    fn model(&mut self) -> Result<NewModel, Failure> {
        let name = self.context.settle(&self.args.flags())?.model()?.name;
        Ok(NewModel { dimensions: self.session(None)?.spec().outputs(), name })
    }

    fn upsert(&mut self, name: &str, body: Value) -> Result<(), Failure> {
        let mut operation = Operation::Upsert(read(body)?);
        let mut documents = Documents::default();
        operation.visit_vectors(&mut |vector| documents.note(vector));
        let documents: Vec<_> = documents.into_iter().collect();
        let work = self.read(&documents, &["search_document", "document", "passage"])?;
        let (collection, console) = (self.all.get(name)?, &self.context.console);
        self.pipeline.push((collection, operation), documents, (work, self.session.as_ref()), console)
    }

    fn query(&mut self, name: &str, body: Value) -> Result<Vec<Value>, Failure> {
        let mut request: QueryRequest = read(body)?;
        let mut documents = Documents::default();
        request.visit_vectors::<Failure>(&mut |vector, _, _| {
            documents.note(vector);
            Ok(())
        })?;
        let mut embedded = self.embed(documents, &["search_query", "query"])?;
        request.visit_vectors::<Failure>(&mut |vector, _, _| {
            embedded.fill(vector);
            Ok(())
        })?;
        let found = self.all.get(name)?.query(&request.into_query()?)?;
        Ok(found.iter().map(|point| shown(&ShownScored(point))).collect())
    }

    /// The texts of documents that a model embeds, tokenised; `None` without any.
    fn read(&mut self, documents: &[Document], prompts: &[&str]) -> Result<Option<Work>, Failure> {
        let by_model: Vec<&Document> = documents.iter().filter(|document| !document.is_bm25()).collect();
        let Some(first) = by_model.first() else { return Ok(None) };
        let session = self.session(first.model.as_deref())?;
        let prompt = prompts.iter().copied().find(|name| session.spec().prompts.contains_key(*name));
        let texts: Vec<&str> = by_model.iter().map(|document| document.text.as_str()).collect();
        session.read(&texts, prompt).map(Some)
    }

    fn embed(&mut self, documents: Documents, prompts: &[&str]) -> Result<Embedded, Failure> {
        let documents: Vec<_> = documents.into_iter().collect();
        let mut rows = Vec::new();
        if let (Some(work), Some(session)) = (self.read(&documents, prompts)?, &self.session) {
            let answer = session.compute(work)?;
            rows.extend(answer.rows().map(<[f32]>::to_vec));
            self.notices.tell(&answer, session, &self.context.console);
        }
        Ok(vectors(&documents, rows, Terms::of_query))
    }
}

/// Where the tokens of texts begin, as a server tells it.
fn token_starts(remote: &Remote, texts: &[&str], model: &str) -> Result<Vec<Vec<usize>>, RemoteError> {
    #[derive(Deserialize)]
    struct Token {
        start: Option<usize>,
    }
    let body = json!({"inputs": texts, "add_special_tokens": false, "model": model});
    let reply = remote.post("/tokenize", &body)?;
    let tokens: Vec<Vec<Token>> = serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?;
    let starts = |tokens: Vec<Token>| tokens.into_iter().map(|token| token.start.unwrap_or(0)).collect();
    Ok(tokens.into_iter().map(starts).collect())
}

fn read<T: for<'de> Deserialize<'de>>(body: Value) -> Result<T, Failure> {
    serde_json::from_value(body).map_err(|error| Error::bad(error.to_string()).into())
}

fn shown(point: &impl Serialize) -> Value {
    serde_json::to_value(point).unwrap_or_else(|error| unreachable!("plain fields: {error}"))
}

/// What stands in an answer's envelope.
fn ask(remote: &Remote, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let reply = remote.send(method, path, body)?;
    let mut answer: Value = serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?;
    Ok(answer["result"].take())
}

/// The settings of a collection that are given when one is made.
fn settings_of(config: &Value) -> Value {
    let mut settings = json!({ "vectors": config["params"]["vectors"] });
    let others = [
        ("sparse_vectors", &config["params"]["sparse_vectors"]),
        ("quantization_config", &config["quantization_config"]),
        ("text_field", &config["text_field"]),
        ("metadata", &config["metadata"]),
    ];
    for (name, value) in others.into_iter().filter(|(_, value)| !value.is_null()) {
        settings[name] = value.clone();
    }
    settings
}

/// The path of a collection, its name escaped.
fn path(name: &str, rest: &str) -> String {
    let escaped: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    format!("/collections/{escaped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(path("my notes/ü", "/points"), "/collections/my%20notes%2F%C3%BC/points");
    }
}
