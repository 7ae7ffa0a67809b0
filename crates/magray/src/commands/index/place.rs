//! Where collections are: in a folder that this process opens, or at a server. Both are told the same JSON, that of
//! Qdrant's API.
//! Reads no documents and prints nothing.

use http::Method;
use magray_index::{Change, Collections, Error, Filter, Options, Selector, Vector};
use serde::Serialize;
use serde_json::{Value, json};

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
        vectors::{Documents, Embedded},
    },
    remote::{Remote, RemoteError},
    session::{Notices, Session},
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
        Ok(Self::Here(Box::new(Folder { all, context, args, session: None, notices: Notices::default() })))
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

    /// Adds or replaces points; a vector may be `{"text", "model"}`.
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

    pub(crate) fn leave(self) {
        if let Self::Here(folder) = self
            && let Some(session) = folder.session
        {
            session.leave();
        }
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
        let mut embedded = self.embed(documents, &["search_document", "document", "passage"], Terms::of_document)?;
        operation.visit_vectors(&mut |vector| embedded.fill(vector));
        Ok(self.all.get(name)?.change(vec![operation.into_change()?])?)
    }

    fn query(&mut self, name: &str, body: Value) -> Result<Vec<Value>, Failure> {
        let mut request: QueryRequest = read(body)?;
        let mut documents = Documents::default();
        request.visit_vectors::<Failure>(&mut |vector, _, _| {
            documents.note(vector);
            Ok(())
        })?;
        let mut embedded = self.embed(documents, &["search_query", "query"], Terms::of_query)?;
        request.visit_vectors::<Failure>(&mut |vector, _, _| {
            embedded.fill(vector);
            Ok(())
        })?;
        let found = self.all.get(name)?.query(&request.into_query()?)?;
        Ok(found.iter().map(|point| shown(&ShownScored(point))).collect())
    }

    fn embed(
        &mut self,
        documents: Documents,
        prompts: &[&str],
        by_terms: fn(&Terms, &str) -> Vector,
    ) -> Result<Embedded, Failure> {
        let documents: Vec<_> = documents.into_iter().collect();
        let texts: Vec<&str> =
            documents.iter().filter(|one| !one.is_bm25()).map(|document| document.text.as_str()).collect();
        let mut rows = Vec::new();
        if !texts.is_empty() {
            let named = documents.iter().find(|one| !one.is_bm25()).and_then(|document| document.model.as_deref());
            let (console, session) = (self.context.console, self.session(named)?);
            let prompt = prompts.iter().copied().find(|name| session.spec().prompts.contains_key(*name));
            let work = session.read(&texts, prompt)?;
            let answer = session.compute(work)?;
            rows.extend(answer.rows().map(<[f32]>::to_vec));
            if let Some(session) = &self.session {
                self.notices.tell(&answer, session, &console);
            }
        }
        let (mut rows, terms) = (rows.into_iter(), Terms::default());
        Ok(Embedded::new(documents.iter().map(|document| match document.is_bm25() {
            true => by_terms(&terms, &document.text),
            false => Vector::Dense(rows.next().unwrap_or_default()),
        })))
    }
}

fn read<T: for<'de> serde::Deserialize<'de>>(body: Value) -> Result<T, Failure> {
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
