//! The kernels of a step, put together first and then launched: one after the other, or as a recording where the same step came before.
//! Knows no operation.

use super::arguments::{Argument, Finish};
use crate::cuda::decoder_kernels::DecoderKernel;
use crate::cuda::device::Cuda;
use crate::cuda::device_error::DeviceError;
use crate::cuda::function::{Function, LaunchShape};
use crate::cuda::stream::{Graph, Stream};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// Recordings kept; beyond it the one goes that was used longest ago.
const MOST_RECORDINGS: usize = 128;

/// A kernel with all it needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Launch {
    pub(super) kernel: DecoderKernel,
    pub(super) shape: LaunchShape,
    pub(super) arguments: Vec<Argument>,
    /// It reads what the kernel ahead writes before it waits for that one, and so must not begin before.
    pub(super) is_strict: bool,
}

impl Launch {
    /// What follows its product.
    pub(super) fn finish_mut(&mut self) -> Option<&mut Finish> {
        self.arguments.iter_mut().find_map(|argument| match argument {
            Argument::Finish(finish) => Some(finish),
            _ => None,
        })
    }

    fn put(&self, function: &Function, cuda: &Cuda, stream: &Stream, overlaps: bool) -> Result<(), DeviceError> {
        cuda.context().bind()?;
        let mut passed = self.arguments.iter().map(|argument| argument.passed()).collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<*mut c_void> = passed.iter_mut().map(super::arguments::Passed::pointer).collect();
        let shape = LaunchShape { overlaps, ..self.shape };
        // SAFETY: the stream is of the same context; each operation gives its kernel's arguments in order, and addresses of
        // buffers that were checked to be large enough and live until the stream was waited for.
        unsafe { function.launch(stream.put(), &shape, &mut pointers) }?;
        Ok(())
    }
}

/// Steps that were recorded.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    /// The last used one at the end.
    known: Vec<(Vec<Launch>, Graph)>,
    /// The last step that was not recorded.
    last: Vec<Launch>,
    functions: Functions,
}

/// Kernels that were made.
#[derive(Debug, Default)]
struct Functions {
    made: BTreeMap<DecoderKernel, Function>,
}

impl Recordings {
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    /// Makes kernels that are to be put into a stream: while one records, none can be brought to the GPU.
    pub(super) fn prepare(&mut self, cuda: &Cuda, launches: &[Launch]) -> Result<(), DeviceError> {
        self.functions.prepare(cuda, launches)
    }

    /// Puts kernels into the stream as they are.
    pub(super) fn put(&mut self, cuda: &Cuda, stream: &Stream, launches: &[Launch]) -> Result<(), DeviceError> {
        self.functions.prepare(cuda, launches)?;
        self.functions.put_all(cuda, stream, launches)
    }

    /// Puts all kernels into the stream. Steps that are to be `kept` are recorded the first time that they come, others if they come
    /// twice in a row.
    pub(super) fn run(
        &mut self,
        cuda: &Cuda,
        stream: &Stream,
        launches: &[Launch],
        kept: bool,
    ) -> Result<(), DeviceError> {
        if launches.is_empty() {
            // A step that begins with rows and ends with them has nothing to record.
            return Ok(());
        }
        let known = self.known.iter().rposition(|(known, _)| known == launches);
        if known.is_none() && !kept && self.last != launches {
            self.last = launches.to_vec();
            self.functions.prepare(cuda, launches)?;
            return self.functions.put_all(cuda, stream, launches);
        }
        let used = match known {
            Some(at) => self.known.remove(at),
            None => {
                self.functions.prepare(cuda, launches)?;
                if self.known.len() >= MOST_RECORDINGS {
                    self.known.remove(0);
                }
                stream.begin_recording()?;
                let put = self.functions.put_all(cuda, stream, launches);
                let graph = stream.end_recording();
                put?;
                (launches.to_vec(), graph?)
            }
        };
        let launched = stream.launch(&used.1);
        self.known.push(used);
        Ok(launched?)
    }
}

impl Functions {
    /// Puts kernels that were prepared into the stream.
    fn put_all(&self, cuda: &Cuda, stream: &Stream, launches: &[Launch]) -> Result<(), DeviceError> {
        for (i, launch) in launches.iter().enumerate() {
            // The first waits for the copy of the batch, which does not know such an order.
            launch.put(&self.made[&launch.kernel], cuda, stream, cuda.overlaps() && i > 0 && !launch.is_strict)?;
        }
        Ok(())
    }

    /// Makes the kernels on all cores, with those that other numbers of rows take in their place: a later step must not wait for a compiler.
    fn prepare(&mut self, cuda: &Cuda, launches: &[Launch]) -> Result<(), DeviceError> {
        if launches.iter().all(|launch| self.made.contains_key(&launch.kernel)) {
            return Ok(());
        }
        let mut kernels: Vec<DecoderKernel> = launches.iter().flat_map(|launch| launch.kernel.siblings()).collect();
        kernels.sort_unstable();
        kernels.dedup();
        let specs: Vec<_> = kernels.iter().map(|kernel| kernel.spec()).collect();
        cuda.prepare(&specs, std::thread::available_parallelism().map_or(1, usize::from))?;
        for (kernel, spec) in kernels.into_iter().zip(&specs) {
            self.made.insert(kernel, cuda.function(spec)?);
        }
        Ok(())
    }
}
