//! Documents that are put into a collection by their text, for agents and critics.
//! Thin caller of what Qdrant's API calls too.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::qdrant::points;
use crate::{
    qdrant::{
        collections::{CreateCollection, Kept},
        points::Operation,
        texts::{self, TEXT_FIELD},
    },
    server::{
        app::App,
        errors::{Kind, Problem},
    },
};

pub(in crate::server) struct NewDocument {
    /// A document with the same id is replaced; without it, one with the same text.
    pub(in crate::server) id: Option<Value>,
    pub(in crate::server) text: String,
    pub(in crate::server) fields: Map<String, Value>,
}

/// Puts documents into a collection, which is made if it is not there.
pub(in crate::server) async fn add(app: &App, collection: String, new: Vec<NewDocument>) -> Result<(), Problem> {
    let own = app.models().embedder(None)?;
    let own = (app.models().get(own).name.clone(), app.models().get(own).outputs);
    let name = collection.clone();
    let ready = app.collections().with_all(move |all| {
        let collection = match all.get(&name) {
            Err(magray_index::Error::NotFound { .. }) => {
                let settings: CreateCollection = read(texts::settings(&own.0, own.1, TEXT_FIELD))?;
                all.create(&name, settings.into_config()?)?;
                all.get(&name)?
            }
            found => found?,
        };
        let config = collection.config();
        let text_field = config.text_field.clone().unwrap_or_else(|| TEXT_FIELD.to_owned());
        Ok((Kept::of(&config).model().unwrap_or(own.0), text_field))
    });
    let (model, text_field) = ready.await?;
    let point = |new: NewDocument| {
        let mut fields = new.fields;
        fields.insert(text_field.clone(), new.text.into());
        fields.extend(new.id.map(|id| ("id".to_owned(), id)));
        texts::point(fields, &text_field, &model)
    };
    let points: Result<Vec<Value>, String> = new.into_iter().map(point).collect();
    let points = points.map_err(|wrong| Problem::new(Kind::Invalid, wrong))?;
    let upsert = Operation::Upsert(read(json!({ "points": points }))?);
    points::apply_all(app, collection, vec![upsert]).await
}

fn read<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, Problem> {
    Ok(serde_json::from_value(value)?)
}
