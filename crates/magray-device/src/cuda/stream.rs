//! A queue of work for the GPU, recordings of such work that are started as one, and marks in it that others wait for.
//! Knows no kernel.

use super::context::Context;
use super::error::CudaError;
use super::progress::Progress;
use super::sys;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How soon the GPU turns to a stream's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// As the work of every pass.
    Usual,
    /// After all other.
    Background,
}

#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
    progress: Arc<Progress>,
}

// SAFETY: a stream may be used from every thread where its context is current, one at a time.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(context: &Arc<Context>, urgency: Urgency) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // The lowest priority is 0, which is also that of streams made without one; passes stand above it.
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: a context is current; writes two numbers.
        CudaError::check(unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) })?;
        let priority = if urgency == Urgency::Background { least } else { greatest };
        // SAFETY: a context is current; writes one handle, destroyed in `drop`.
        CudaError::check(unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) })?;
        Ok(Self { context: Arc::clone(context), raw, progress: context.new_progress(raw) })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The stream, for an operation that is about to be put into it and is counted by this.
    pub(super) fn put(&self) -> sys::CUstream {
        self.progress.note_put();
        self.raw
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Waits until all work is done; reports what went wrong in it.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        let point = self.progress.last();
        // SAFETY: the stream lives as long as `self`.
        CudaError::check(unsafe { sys::cuStreamSynchronize(self.raw) })?;
        self.context.reached(&self.progress, point);
        Ok(())
    }

    /// Whether all work is done, also where something went wrong in it: a wait reports that.
    pub(super) fn is_done(&self) -> bool {
        // SAFETY: the stream lives as long as `self`; without its context the driver refuses.
        let state = self.context.bind().map(|()| unsafe { sys::cuStreamQuery(self.raw) });
        !matches!(state, Ok(sys::CUresult::CUDA_ERROR_NOT_READY))
    }

    /// Copies words of pinned memory to the GPU.
    ///
    /// # Safety
    /// Both ranges hold this many bytes until the copy has run; the context is current.
    pub(super) unsafe fn copy_in(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        CudaError::check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from as *const _, bytes, self.put()) })
    }

    /// Copies memory of the GPU to the host.
    ///
    /// # Safety
    /// Both ranges hold this many bytes until the copy has run, and the host's is not accessed meanwhile; the context
    /// is current.
    pub(super) unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        CudaError::check(unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.put()) })
    }

    /// Copies memory of the GPU to other memory of it.
    ///
    /// # Safety
    /// Both ranges hold this many bytes until the copy has run; the context is current.
    pub(super) unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        CudaError::check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.put()) })
    }

    /// Fills memory of the GPU with zeros.
    ///
    /// # Safety
    /// The range holds this many bytes until that is done; the context is current.
    pub(super) unsafe fn zero(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        CudaError::check(unsafe { sys::cuMemsetD8Async(address, 0, bytes, self.put()) })
    }

    /// A mark behind everything that was put in so far.
    pub(super) fn mark(&self) -> Result<Mark, CudaError> {
        let mut mark = Mark::new(&self.context)?;
        self.mark_again(&mut mark)?;
        Ok(mark)
    }

    /// Moves a mark behind everything that was put in so far.
    pub(super) fn mark_again(&self, mark: &mut Mark) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live and are of the same context.
        CudaError::check(unsafe { sys::cuEventRecord(mark.raw, self.put()) })?;
        let point = self.progress.last();
        mark.behind = Some((Arc::clone(&self.progress), point));
        Ok(())
    }

    /// What is put in from now on waits for what lies before the mark, whatever stream that is in, also of another GPU. The mark may be
    /// moved meanwhile.
    pub(super) fn wait_for(&self, mark: &Mark) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live, and the context is the stream's; the driver keeps what it needs of the event.
        CudaError::check(unsafe { sys::cuStreamWaitEvent(self.put(), mark.raw, 0) })
    }

    /// From now on what is put into this stream is recorded instead of done.
    pub(super) fn begin_recording(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // Other streams of this process go on meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.context.records(&self.progress, true);
        // SAFETY: the stream lives as long as `self`; one that records already refuses.
        let begun = CudaError::check(unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) });
        if begun.is_err() {
            self.context.records(&self.progress, false);
        }
        begun
    }

    /// Takes part in the recording of another stream, which it waits for next, until that ends; or does so no more.
    pub(super) fn joins_recording(&self, joins: bool) {
        self.context.records(&self.progress, joins);
    }

    pub(super) fn end_recording(&self) -> Result<Graph, CudaError> {
        self.context.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream that does not record refuses; writes one handle, destroyed below.
        let ended = CudaError::check(unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) });
        self.context.records(&self.progress, false);
        ended?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is whole; writes one handle, destroyed in `drop`.
        let made = CudaError::check(unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) });
        // SAFETY: made above; the executable form does not need it any more.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        Ok(Graph { context: Arc::clone(&self.context), raw })
    }

    pub(super) fn launch(&self, graph: &Graph) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live; what the recording uses stays in place as long as its owner keeps the recording.
        CudaError::check(unsafe { sys::cuGraphLaunch(graph.raw, self.put()) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let is_bound = self.context.bind().is_ok();
        if is_bound {
            // SAFETY: the stream lives. Work still in it is finished first; a failure is ignored, and after one
            // nothing runs any more either: the context is lost.
            let _ = unsafe { sys::cuStreamSynchronize(self.raw) };
        }
        self.context.ended(&self.progress, || {
            if is_bound {
                // SAFETY: made once in `new`, and it is not used any more.
                let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
            }
        });
    }
}

/// A place in a stream's work.
#[derive(Debug)]
pub(super) struct Mark {
    context: Arc<Context>,
    raw: sys::CUevent,
    behind: Option<(Arc<Progress>, u64)>,
}

// SAFETY: an event may be used from every thread where its context is current.
unsafe impl Send for Mark {}

impl Mark {
    /// A mark that is not placed yet: waiting for it returns at once.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags =
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: a context is current; writes one handle, destroyed in `drop`.
        CudaError::check(unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { context: Arc::clone(context), raw, behind: None })
    }

    /// Waits until everything before the mark is done.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        let Some((progress, point)) = &self.behind else { return Ok(()) };
        self.context.bind()?;
        // SAFETY: the event lives as long as `self`.
        CudaError::check(unsafe { sys::cuEventSynchronize(self.raw) })?;
        self.context.reached(progress, *point);
        Ok(())
    }

    /// The same, at first without sleep: the interrupt that ends a sleep can take a quarter of a millisecond in a virtual machine.
    /// Takes a core meanwhile, but for what other threads on it want.
    pub(super) fn wait_awake(&self, most: Duration) -> Result<(), CudaError> {
        let begun = Instant::now();
        self.context.bind()?;
        // SAFETY: the event lives as long as `self`.
        while unsafe { sys::cuEventQuery(self.raw) } == sys::CUresult::CUDA_ERROR_NOT_READY {
            if begun.elapsed() > most {
                break;
            }
            std::thread::yield_now();
        }
        self.wait()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made once in `new`; the driver keeps an event that a stream still waits for. A failure is
            // ignored.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

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
            // SAFETY: made once in `end_recording`; a failure is ignored.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
