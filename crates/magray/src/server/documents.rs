//! Embeds the texts that come in place of vectors: by a model of the server, or as the terms of BM25.
//! Knows no collection: what a vector is for is told by its name in the request.

use std::{borrow::Cow, collections::BTreeMap};

use magray_index::Vector;

use super::{app::App, errors::Problem, inputs::Input, service::Reading};
use crate::qdrant::{
    bm25::Terms,
    vectors::{Documents, Embedded},
};

/// What texts are embedded for; some models have a prompt for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Storing,
    Searching,
}

impl Purpose {
    /// Names of prompts, the best first.
    fn prompts(self) -> &'static [&'static str] {
        match self {
            Self::Storing => &["search_document", "document", "passage"],
            Self::Searching => &["search_query", "query"],
        }
    }
}

/// The vectors of texts. Withdrawn where the caller leaves.
pub(crate) async fn embed(app: &App, documents: Documents, purpose: Purpose) -> Result<Embedded, Problem> {
    let (mut vectors, terms): (Vec<Option<Vector>>, _) = (Vec::new(), Terms::default());
    let mut by_model: BTreeMap<usize, Vec<(usize, String)>> = BTreeMap::new();
    for (at, document) in documents.into_iter().enumerate() {
        if document.is_bm25() {
            vectors.push(Some(match purpose {
                Purpose::Storing => terms.of_document(&document.text),
                Purpose::Searching => terms.of_query(&document.text),
            }));
            continue;
        }
        vectors.push(None);
        let model = app.models().embedder(document.model.as_deref())?;
        by_model.entry(model).or_default().push((at, document.text));
    }
    for (model, texts) in by_model {
        let (places, texts): (Vec<usize>, Vec<String>) = texts.into_iter().unzip();
        let read = app.read(texts.iter().map(String::len).sum(), move |app| {
            let known = app.engine().spec(model).map(|spec| &spec.prompts);
            let prompt =
                known.and_then(|known| purpose.prompts().iter().copied().find(|name| known.contains_key(*name)));
            let how = Reading { model, param: "text", prompt, truncate: None };
            let texts = texts.into_iter().map(Cow::Owned).collect();
            app.read_input(Input::Texts { texts, is_single: false }, how)
        });
        let computed = app.compute(read.await?).await?;
        for (at, row) in places.into_iter().zip(computed.answer.rows()) {
            vectors[at] = Some(Vector::Dense(row.to_vec()));
        }
    }
    Ok(Embedded::new(vectors.into_iter().map(|vector| vector.unwrap_or_else(|| unreachable!("every text has one")))))
}
