//! Earlier cases in a collection: found for a text, and stored when it was judged.
//! Judges nothing.

use serde_json::{Map, Value};

use super::Context;
use crate::{
    commands::{
        index::{Known, PlaceArgs},
        search::{self, Found, Reranker, Retrieval},
    },
    critics::{Precedent, Report, case_fields, case_id},
    exit::Failure,
    qdrant::texts::{self, TEXT_FIELD},
};

pub(super) struct Cases<'a> {
    collection: &'a str,
    place: PlaceArgs,
}

impl<'a> Cases<'a> {
    /// In this folder, or in that of the settings.
    pub(super) fn new(collection: &'a str, folder: Option<String>) -> Self {
        Self { collection, place: PlaceArgs::in_folder(folder) }
    }

    /// The cases that are most like a text. A collection that is not there has none, if a case is to be stored in it.
    pub(super) fn find(
        &self,
        text: &str,
        limit: usize,
        stores: bool,
        context: &Context,
    ) -> Result<Vec<Precedent>, Failure> {
        let is_there = self.place.open(context)?.find(self.collection)?.is_some();
        if limit == 0 || (stores && !is_there) {
            return Ok(Vec::new());
        }
        let (collection, query, is_hybrid) = (self.collection, text, false);
        let retrieval = Retrieval { collection, query, is_hybrid, reranker: Reranker::None, filter: None, limit };
        let none = Map::new();
        let precedent = |found: Found| {
            let fields = found.payload.as_object().unwrap_or(&none);
            Precedent::of(found.id, found.score, &found.text, fields)
        };
        Ok(search::retrieve(retrieval, &self.place, context)?.into_iter().map(precedent).collect())
    }

    /// Stores a text with what was decided; the id of the case.
    pub(super) fn store(&self, text: &str, report: &Report, context: &Context) -> Result<String, Failure> {
        let mut place = self.place.open(context)?;
        let (model, text_field) = match place.find(self.collection)? {
            Some(Known { model, text_field, .. }) => {
                let model = model.map_or_else(|| Ok::<_, Failure>(place.model()?.name), Ok)?;
                (model, text_field.unwrap_or_else(|| TEXT_FIELD.to_owned()))
            }
            None => {
                let model = place.model()?;
                place.create(self.collection, texts::settings(&model.name, model.dimensions, TEXT_FIELD))?;
                (model.name, TEXT_FIELD.to_owned())
            }
        };
        let (mut fields, id) = (case_fields(report), case_id(text));
        fields.insert(text_field.clone(), text.into());
        fields.insert("id".to_owned(), id.clone());
        let point = texts::point(fields, &text_field, &model).map_err(Failure::Usage)?;
        place.upsert(self.collection, vec![point])?;
        place.finish()?;
        Ok(shown(&id))
    }
}

fn shown(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}
