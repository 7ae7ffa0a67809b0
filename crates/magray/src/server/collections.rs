//! The collections of the server: opened with the first request that needs them, used on threads that may block.
//! Makes no folder before that: a server that only embeds has none.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use magray_index::{Collection, Collections, Error, Options, RowsHost};

use super::errors::{Kind, Problem};

/// A folder, and its collections once they are open.
pub(crate) struct LazyCollections {
    /// `None`: the system has no folder for data, and no other is set.
    folder: Option<PathBuf>,
    /// GPUs that may hold vectors.
    host: Option<Arc<dyn RowsHost>>,
    opened: Mutex<Option<Arc<Collections>>>,
}

impl LazyCollections {
    pub(crate) fn new(folder: Option<PathBuf>, host: Option<Arc<dyn RowsHost>>) -> Arc<Self> {
        Arc::new(Self { folder, host, opened: Mutex::new(None) })
    }

    /// Opens them if they are not. Blocks. What fails is tried again with the next request.
    fn open(&self) -> Result<Arc<Collections>, Problem> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*opened {
            return Ok(Arc::clone(known));
        }
        let Some(folder) = &self.folder else {
            return Err(Problem::new(Kind::Unavailable, "there is no folder for collections: set search.folder"));
        };
        let all = Arc::new(Collections::open(folder, Options { host: self.host.clone(), ..Options::default() })?);
        *opened = Some(Arc::clone(&all));
        Ok(all)
    }

    /// How often dense vectors were searched, on the CPU and on a GPU.
    pub(crate) fn searches(&self) -> (u64, u64) {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map_or((0, 0), |all| (all.searches().cpu(), all.searches().elsewhere()))
    }

    /// Ends them: what is written is on the disk, and another process may open the folder.
    pub(crate) fn close(&self) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Uses the collections on a thread that may block; goes on where the caller has left, so that no change is half done.
    pub(crate) async fn with_all<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Collections) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (own, span) = (Arc::clone(self), tracing::Span::current());
        let working = tokio::task::spawn_blocking(move || span.in_scope(|| work(&*own.open()?)));
        let failed = |_| Err(Problem::new(Kind::Internal, "the collections failed: report it as a defect"));
        working.await.unwrap_or_else(failed)
    }

    pub(crate) async fn with_one<T: Send + 'static>(
        self: &Arc<Self>,
        name: String,
        work: impl FnOnce(&Collection) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.with_all(move |all| work(&*all.get(&name)?)).await
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NotFound { .. } => Kind::NotFound,
            Error::Exists { .. } => Kind::Exists,
            Error::BadInput(_) => Kind::Invalid,
            Error::Full => Kind::Full,
            Error::ReadOnly | Error::Locked { .. } | Error::Replaced | Error::Corrupt { .. } => Kind::Unavailable,
            Error::Store(_) => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}
