//! Documents of a collection that fit a text, for agents and for chats that are answered from them.
//! Changes no collection. A chat that names none costs nothing here.

use magray_chat::Role;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::qdrant::queries;
use crate::{
    generation::{Job, JobInput, PASSAGES, cut, with_passages},
    qdrant::{
        collections::Kept,
        query::QueryRequest,
        texts::{TEXT_FIELD, TextSearch},
    },
    server::{
        app::App,
        errors::Problem,
        generating::ReadJobs,
        models::Does,
        requests::collection_field::{CollectionField, CollectionSearch},
    },
};

/// What is searched for.
pub(in crate::server) struct DocumentSearch {
    pub(in crate::server) collection: String,
    pub(in crate::server) query: String,
    pub(in crate::server) limit: usize,
    /// By words too; `None`: where the collection knows which field is its text.
    pub(in crate::server) is_hybrid: Option<bool>,
    pub(in crate::server) is_reranked: bool,
    pub(in crate::server) filter: Option<Value>,
}

/// A document that was found.
pub(in crate::server) struct FoundDocument {
    pub(in crate::server) id: Value,
    pub(in crate::server) score: f64,
    pub(in crate::server) text: String,
    pub(in crate::server) fields: Map<String, Value>,
}

/// What is returned at most.
pub(in crate::server) const LIMIT_MAX: usize = 100;
/// Passages have this many bytes for each token of the model's context: half of it, as most texts are.
const BYTES_PER_TOKEN: usize = 2;

/// The documents that fit best, the best first.
pub(in crate::server) async fn search(app: &App, search: DocumentSearch) -> Result<Vec<FoundDocument>, Problem> {
    let DocumentSearch { collection: name, query, limit, is_hybrid, is_reranked, filter } = search;
    let limit = limit.clamp(1, LIMIT_MAX);
    let known = app.collections().with_one(name.clone(), |collection| {
        let config = collection.config();
        Ok((Kept::of(&config).model(), config.text_field.clone()))
    });
    let (model, known_field) = known.await?;
    let is_hybrid = is_hybrid.unwrap_or(known_field.is_some());
    let text_field = known_field.unwrap_or_else(|| TEXT_FIELD.to_owned());
    let (model, text_field) = (model.as_deref(), text_field.as_str());
    let asked = TextSearch { query: &query, model, text_field, is_hybrid, is_reranked, limit, filter };
    let mut requests = [QueryRequest::deserialize(asked.body())?];
    queries::embed(app, &mut requests).await?;
    let found = app.collections().with_all(move |all| {
        let [request] = requests;
        queries::find(all, &name, request)
    });
    let document = |fields: Map<String, Value>| {
        let text = fields.get(text_field).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text, fields)
    };
    let found = found.await?.into_iter().map(|one| {
        let (text, fields) = document(one.payload.unwrap_or_default());
        FoundDocument { id: json!(one.id), score: one.score.into(), text, fields }
    });
    let mut found: Vec<FoundDocument> = found.collect();
    if is_reranked && !found.is_empty() {
        let scores = app.rank_texts(&query, found.iter().map(|one| one.text.clone()).collect()).await?;
        found.iter_mut().zip(scores).for_each(|(one, own)| one.score = own.into());
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
    }
    found.truncate(limit);
    Ok(found)
}

/// A chat that was read, and the collection that it is to be answered from.
pub(super) enum Asking {
    Ready(ReadJobs),
    From(Box<Job>, CollectionSearch),
}

impl App {
    /// Reads the prompt of a chat, unless passages have to be found for it first.
    pub(super) fn read_chat(&self, job: Job, wanted: Option<CollectionField>) -> Result<Asking, Problem> {
        match wanted {
            Some(wanted) => Ok(Asking::From(Box::new(job), wanted.into())),
            None => Ok(Asking::Ready(self.read_jobs(vec![job])?)),
        }
    }

    /// Puts the passages of a collection before the last question, where one was asked for.
    pub(super) async fn with_passages(&self, asking: Asking, bytes: usize) -> Result<ReadJobs, Problem> {
        let (mut job, wanted) = match asking {
            Asking::Ready(read) => return Ok(read),
            Asking::From(job, wanted) => (job, wanted),
        };
        let context = self.models().get(job.model).max_tokens;
        let Some(question) = question_of(&mut job) else {
            return Err(Problem::invalid("magray_collection", "there is no question to find passages for"));
        };
        let ranks = || self.models().iter().any(|(_, model)| model.does == Does::Rank);
        let wanted = DocumentSearch {
            collection: wanted.name,
            query: question.clone(),
            limit: wanted.limit.unwrap_or(PASSAGES),
            is_hybrid: wanted.hybrid,
            is_reranked: wanted.rerank.unwrap_or_else(ranks),
            filter: wanted.filter.map(Value::Object),
        };
        let found = search(self, wanted).await.map_err(|problem| problem.about("magray_collection"));
        let mut found = found?;
        found.retain(|one| !one.text.trim().is_empty());
        cut(found.iter_mut().map(|one| &mut one.text), context * BYTES_PER_TOKEN);
        *question = with_passages(found.iter().map(|one| one.text.as_str()), question);
        let citation = |(number, one): (usize, FoundDocument)| {
            let FoundDocument { id, score, text, fields } = one;
            json!({"number": number, "id": id, "score": score, "text": text, "payload": fields})
        };
        let citations: Value = (1..).zip(found).map(citation).collect();
        let read = self.read(bytes, move |app| app.read_jobs(vec![*job])).await?;
        Ok(read.citing(citations))
    }
}

/// What the user said last.
fn question_of(job: &mut Job) -> Option<&mut String> {
    let JobInput::Chat(chat) = &mut job.input else { return None };
    let last = chat.conversation.messages.iter_mut().rev().find(|message| message.role == Role::User);
    last.map(|message| &mut message.content).filter(|question| !question.trim().is_empty())
}
