//! A queue of work for the GPU, and recordings of such work that are started as one.
//! Knows no kernel.

use super::context::Context;
use super::error::CudaError;
use super::sys;
use std::sync::Arc;

/// Work in order, beside that of other streams.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: a stream may be used from every thread where its context is current, one at a time.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; writes one handle, destroyed in `drop`.
        CudaError::check(unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits until all work is done; reports what went wrong in it.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the stream lives as long as `self`.
        CudaError::check(unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Copies words of pinned memory to the GPU.
    ///
    /// # Safety
    /// Both ranges hold so many words until the copy has run.
    pub(super) unsafe fn copy_in(&self, to: u64, from: u64, words: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        CudaError::check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from as *const _, words * 4, self.raw) })
    }

    /// From now on what is put into this stream is recorded instead of done.
    pub(super) fn begin_recording(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // Other streams of this process go on meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives as long as `self`; one that records already refuses.
        CudaError::check(unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })
    }

    /// What was recorded.
    pub(super) fn end_recording(&self) -> Result<Graph, CudaError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream that does not record refuses; writes one handle, destroyed below.
        CudaError::check(unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is whole; writes one handle, destroyed in `drop`.
        let made = CudaError::check(unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) });
        // SAFETY: made above; the executable form does not need it any more.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        Ok(Graph { context: Arc::clone(&self.context), raw })
    }

    /// Starts recorded work.
    pub(super) fn launch(&self, graph: &Graph) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live; what the recording uses stays in place as long as its owner keeps the recording.
        CudaError::check(unsafe { sys::cuGraphLaunch(graph.raw, self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made once in `new`. Work still in it is finished first; a failure has nobody to tell.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.raw);
                let _ = sys::cuStreamDestroy_v2(self.raw);
            }
        }
    }
}

/// Recorded work.
#[derive(Debug)]
pub(super) struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: as for streams.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made once in `record`; a failure has nobody to tell.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
