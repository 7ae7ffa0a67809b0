//! OpenAI's vector stores over collections: stores, their files and batches of files, searches.
//! A collection that was made elsewhere can be looked at and searched; what changes a store is for those made here.

pub(crate) mod batches;
pub(crate) mod files;
pub(crate) mod search;
pub(crate) mod stores;

use std::sync::Arc;

use magray_index::{Collection, Collections};

use crate::{
    qdrant::collections::Kept,
    server::{
        app::App,
        errors::{Kind, Problem},
        index_jobs::now,
    },
    vector_stores::{
        attached::{self, AttachedFile, FILES_MAX, Status},
        ids::Of,
        page::PageSize,
        requests::{AttachFile, ChunkTokens, checked_attributes},
        settings::StoreSettings,
        uploaded,
    },
};

const PAGE: PageSize = PageSize { usual: 20, most: 100 };

/// A collection as a store.
struct Store {
    id: String,
    collection: Arc<Collection>,
    kept: Kept,
}

impl Store {
    fn open(all: &Collections, id: &str) -> Result<Self, Problem> {
        let missing = || Problem::new(Kind::NotFound, format!("there is no vector store '{id}'"));
        let collection = match all.get(id) {
            Err(magray_index::Error::NotFound { .. }) => return Err(missing()),
            found => found?,
        };
        Ok(Self { id: id.to_owned(), kept: Kept::of(&collection.config()), collection })
    }

    /// One that was made by this API.
    fn own(all: &Collections, id: &str) -> Result<(Self, StoreSettings), Problem> {
        let store = Self::open(all, id)?;
        let message = "this collection is no vector store: it can be searched here, and is changed where it was made";
        match store.kept.store.clone() {
            Some(settings) => Ok((store, settings)),
            None => Err(Problem::new(Kind::Invalid, message).about("vector_store_id")),
        }
    }

    /// Refuses one that has expired.
    fn check_usable(&self) -> Result<(), Problem> {
        match &self.kept.store {
            Some(settings) if settings.is_expired(now()) => {
                let message = "the vector store has expired: give it another expires_after, or delete it";
                Err(Problem::new(Kind::Invalid, message).about("vector_store_id"))
            }
            _ => Ok(()),
        }
    }

    /// Remembers that it is used.
    fn note_use(&self) -> Result<(), Problem> {
        let now = now();
        if self.kept.store.as_ref().is_some_and(|settings| settings.is_news(now)) {
            Kept::change(&self.collection, |kept| {
                kept.store.iter_mut().for_each(|settings| settings.last_active_at = now);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn file(&self, file_id: &str) -> Result<AttachedFile, Problem> {
        let missing = || Problem::new(Kind::NotFound, format!("there is no file '{file_id}' in this vector store"));
        let number = Of::File.number(file_id).ok_or_else(missing)?;
        attached::find(&self.collection, number)?.ok_or_else(missing)
    }

    /// Writes records of files that are to be indexed. Indexing begins with [`App::index_files`].
    fn attach(
        &self,
        (app, all): (&App, &Collections),
        files: Vec<AttachFile>,
        batch_id: Option<String>,
    ) -> Result<Vec<AttachedFile>, Problem> {
        self.check_usable()?;
        let model = app.models().get(app.models().embedder(self.kept.model().as_deref())?);
        let (now, attempt) = (now(), app.indexing().next_number());
        let record = |file: AttachFile| {
            let missing =
                || Problem::new(Kind::NotFound, format!("there is no file '{}'", file.file_id)).about("file_id");
            let number = Of::File.number(&file.file_id).ok_or_else(missing)?;
            let uploaded = uploaded::find(all, number, now)?.ok_or_else(missing)?;
            let size = file.chunking_strategy.unwrap_or_default().size(model.max_tokens);
            let size = size.map_err(|error| Problem::from(error).about("chunking_strategy"))?;
            let attributes = checked_attributes(file.attributes.unwrap_or_default());
            Ok(AttachedFile {
                file_id: file.file_id,
                filename: uploaded.filename,
                status: Status::InProgress,
                created_at: now,
                usage_bytes: 0,
                attributes: attributes.map_err(|error| Problem::from(error).about("attributes"))?,
                chunks: ChunkTokens { max_chunk_size_tokens: size.tokens, chunk_overlap_tokens: size.overlap },
                last_error: None,
                batch_id: batch_id.clone(),
                attempt,
            })
        };
        let files = files.into_iter().map(record).collect::<Result<Vec<_>, Problem>>()?;
        let _changing = app.indexing().change();
        if attached::list(&self.collection)?.len() + files.len() > FILES_MAX {
            let message = format!("a vector store has {FILES_MAX} files at most: delete some, or make another");
            return Err(Problem::new(Kind::Invalid, message).about("vector_store_id"));
        }
        attached::put(&self.collection, &files)?;
        self.note_use()?;
        Ok(files)
    }
}
