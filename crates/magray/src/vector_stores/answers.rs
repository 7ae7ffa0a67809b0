//! What OpenAI's clients are shown of files and vector stores.
//! Types only.

use std::collections::BTreeMap;

use magray_index::Payload;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    attached::{AttachedFile, LastError, Status},
    ids::{self, Of},
    requests::{ChunkTokens, ExpiresAfter},
    settings::StoreSettings,
    uploaded::UploadedFile,
};

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// `list`.
    object: &'static str,
    pub(crate) data: Vec<T>,
    first_id: Option<String>,
    last_id: Option<String>,
    pub(crate) has_more: bool,
}

impl<T> Page<T> {
    pub(super) fn new(data: Vec<T>, id: impl Fn(&T) -> &str, has_more: bool) -> Self {
        let own = |item: Option<&T>| item.map(|item| id(item).to_owned());
        Self { object: "list", first_id: own(data.first()), last_id: own(data.last()), data, has_more }
    }

    /// The same part of a list of what has the same ids.
    pub(crate) fn map<U, E>(self, of: impl FnMut(T) -> Result<U, E>) -> Result<Page<U>, E> {
        let data = self.data.into_iter().map(of).collect::<Result<_, E>>()?;
        let Self { object, first_id, last_id, has_more, .. } = self;
        Ok(Page { object, data, first_id, last_id, has_more })
    }
}

/// An uploaded file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct File {
    id: String,
    /// `file`.
    object: &'static str,
    bytes: usize,
    created_at: u64,
    expires_at: Option<u64>,
    filename: String,
    purpose: String,
    /// `processed`.
    status: &'static str,
}

impl File {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

impl From<UploadedFile> for File {
    fn from(file: UploadedFile) -> Self {
        Self {
            id: file.id(),
            object: "file",
            bytes: file.bytes,
            created_at: file.created_at(),
            expires_at: file.expires_at,
            filename: file.filename,
            purpose: file.purpose,
            status: "processed",
        }
    }
}

/// A store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VectorStore {
    id: String,
    /// `vector_store`.
    object: &'static str,
    created_at: u64,
    name: String,
    description: Option<String>,
    usage_bytes: u64,
    file_counts: FileCounts,
    status: StoreStatus,
    expires_after: Option<ExpiresAfter>,
    expires_at: Option<u64>,
    last_active_at: u64,
    metadata: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum StoreStatus {
    Expired,
    InProgress,
    Completed,
}

impl VectorStore {
    pub(crate) fn new(id: String, settings: StoreSettings, files: &[AttachedFile], now: u64) -> Self {
        let file_counts = FileCounts::of(files);
        let status = match file_counts.in_progress {
            _ if settings.is_expired(now) => StoreStatus::Expired,
            0 => StoreStatus::Completed,
            _ => StoreStatus::InProgress,
        };
        let expires_after = |days| ExpiresAfter { anchor: ExpiresAfter::ANCHOR.to_owned(), days };
        Self {
            id,
            object: "vector_store",
            created_at: settings.created_at,
            usage_bytes: files.iter().map(|file| file.usage_bytes).sum(),
            file_counts,
            status,
            expires_after: settings.expires_after_days.map(expires_after),
            expires_at: settings.expires_at(),
            last_active_at: settings.last_active_at,
            name: settings.name,
            description: settings.description,
            metadata: settings.metadata,
        }
    }

    /// A collection that was made elsewhere.
    pub(crate) fn of_collection(name: &str, usage_bytes: u64) -> Self {
        let settings = StoreSettings { name: name.to_owned(), ..StoreSettings::default() };
        Self { usage_bytes, ..Self::new(name.to_owned(), settings, &[], 0) }
    }
}

/// How many files are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FileCounts {
    in_progress: usize,
    completed: usize,
    failed: usize,
    cancelled: usize,
    total: usize,
}

impl FileCounts {
    fn of(files: &[AttachedFile]) -> Self {
        let mut counts = Self { total: files.len(), ..Self::default() };
        for file in files {
            *match file.status {
                Status::InProgress => &mut counts.in_progress,
                Status::Completed => &mut counts.completed,
                Status::Failed => &mut counts.failed,
                Status::Cancelled => &mut counts.cancelled,
            } += 1;
        }
        counts
    }
}

/// A file of a store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VectorStoreFile {
    id: String,
    /// `vector_store.file`.
    object: &'static str,
    created_at: u64,
    vector_store_id: String,
    status: Status,
    last_error: Option<LastError>,
    /// Of texts and vectors.
    usage_bytes: u64,
    #[schema(value_type = Object)]
    attributes: Payload,
    chunking_strategy: StaticChunking,
}

/// How the texts of the file were split.
#[derive(Debug, Serialize, ToSchema)]
struct StaticChunking {
    /// `static`.
    r#type: &'static str,
    r#static: ChunkTokens,
}

impl VectorStoreFile {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn new(store: &str, file: AttachedFile) -> Self {
        Self {
            id: file.file_id,
            object: "vector_store.file",
            created_at: file.created_at,
            vector_store_id: store.to_owned(),
            status: file.status,
            last_error: file.last_error,
            usage_bytes: file.usage_bytes,
            attributes: file.attributes,
            chunking_strategy: StaticChunking { r#type: "static", r#static: file.chunks },
        }
    }
}

/// Files that were put into a store together.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileBatch {
    id: String,
    /// `vector_store.files_batch`.
    object: &'static str,
    created_at: u64,
    vector_store_id: String,
    pub(crate) status: Status,
    file_counts: FileCounts,
}

impl FileBatch {
    pub(crate) fn new(store: &str, number: u64, files: &[AttachedFile]) -> Self {
        let counts = FileCounts::of(files);
        let status = match counts {
            FileCounts { in_progress: 1.., .. } => Status::InProgress,
            FileCounts { cancelled: 1.., .. } => Status::Cancelled,
            FileCounts { completed: 0, failed: 1.., .. } => Status::Failed,
            _ => Status::Completed,
        };
        Self {
            id: Of::Batch.id(number),
            object: "vector_store.files_batch",
            created_at: ids::created_s(number),
            vector_store_id: store.to_owned(),
            status,
            file_counts: counts,
        }
    }
}

/// What is gone.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

/// The text of a file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ContentPage {
    /// `vector_store.file_content.page`.
    object: &'static str,
    data: Vec<Content>,
    has_more: bool,
    next_page: Option<String>,
}

impl ContentPage {
    pub(crate) fn new(text: String) -> Self {
        Self {
            object: "vector_store.file_content.page",
            data: vec![Content::new(text)],
            has_more: false,
            next_page: None,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Content {
    /// `text`.
    r#type: &'static str,
    text: String,
}

impl Content {
    pub(crate) fn new(text: String) -> Self {
        Self { r#type: "text", text }
    }
}

/// What was found, the best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SearchPage {
    /// `vector_store.search_results.page`.
    object: &'static str,
    search_query: Vec<String>,
    data: Vec<SearchResult>,
    has_more: bool,
    next_page: Option<String>,
}

impl SearchPage {
    pub(crate) fn new(search_query: Vec<String>, data: Vec<SearchResult>) -> Self {
        Self { object: "vector_store.search_results.page", search_query, data, has_more: false, next_page: None }
    }
}

/// A part of a file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SearchResult {
    pub(crate) file_id: String,
    pub(crate) filename: String,
    /// Near 1 is best.
    pub(crate) score: f32,
    #[schema(value_type = Object)]
    pub(crate) attributes: Payload,
    pub(crate) content: Vec<Content>,
}
