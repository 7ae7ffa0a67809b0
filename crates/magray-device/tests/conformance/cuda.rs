//! The first NVIDIA GPU under test: every precision it has, with its own kernels and with those of every GPU.
//! Skips where there is no GPU, and says so; fails there instead if the environment asks for one.

use crate::rig::{Rig, Stored, Subject};
use crate::variables;
use magray_core::{Precision, PrecisionChoice};
use magray_device::cuda::{Arch, Cuda, CudaOps, CudaOptions, DeviceError, GpuInfo, KernelError, all_specs, probe};
use std::sync::{Arc, LazyLock};

/// The first compute capability that stores bf16.
const AMPERE: (u32, u32) = (8, 0);
/// The compute capability that has kernels of its own.
const HOPPER: (u32, u32) = (9, 0);

/// The GPU in one of its variants.
pub(crate) struct CudaSubject {
    cuda: Arc<Cuda>,
    precision: Precision,
}

/// The GPU with each set of kernels, opened once for all tests; or the code of the reason why there is none.
static OPENED: LazyLock<Result<Vec<Opened>, &'static str>> = LazyLock::new(open_all);

struct Opened {
    kernels: &'static str,
    cuda: Arc<Cuda>,
    precisions: Vec<Precision>,
}

/// The GPU that is tested, or why there is none.
fn find() -> Result<GpuInfo, &'static str> {
    let gpus = probe(&variables::search_path(), &variables::visible()).map_err(|declined| declined.code())?;
    Ok(gpus[0].clone())
}

/// The GPU that is tested; none where there is none, which is told.
pub(crate) fn first_gpu() -> Option<GpuInfo> {
    // A machine without a compiler of kernels cannot run any.
    (!opened().is_empty()).then(|| find().expect("it was there"))
}

/// The GPU, opened once more.
pub(crate) fn open(gpu: &GpuInfo, options: CudaOptions) -> Arc<Cuda> {
    let (kernel_cache, search) = (variables::kernel_cache(), variables::search_path());
    Cuda::open(gpu, CudaOptions { kernel_cache, search, ..options }).expect("the GPU opens")
}

fn open_all() -> Result<Vec<Opened>, &'static str> {
    let gpu = find()?;
    let capability = gpu.capability;
    let has = |precision: &Precision| PrecisionChoice::Exactly(*precision).settle_gpu(capability) == *precision;
    let all: Vec<Precision> = Precision::ALL.into_iter().filter(has).collect();
    // Hopper's own kernels multiply 16-bit numbers, which a model in bytes has too.
    let with_sixteen: Vec<Precision> =
        all.iter().copied().filter(|precision| !matches!(precision, Precision::F32 | Precision::Tf32)).collect();
    let sets = if capability == HOPPER { vec![("own", all), ("portable", with_sixteen)] } else { vec![("own", all)] };
    let open_with = |(kernels, precisions): (&'static str, Vec<Precision>)| {
        let (kernel_cache, search) = (variables::kernel_cache(), variables::search_path());
        let options =
            CudaOptions { kernel_cache, search, portable_kernels: kernels == "portable", ..Default::default() };
        let cuda = Cuda::open(&gpu, options).expect("the GPU opens");
        match cuda.prepare(&all_specs()[..1], 1) {
            Ok(()) => Ok(Opened { kernels, cuda, precisions }),
            // Nothing can be compiled here.
            Err(DeviceError::Kernel(KernelError::Declined { declined, .. })) => Err(declined.code()),
            Err(error) => panic!("the first kernel does not load: {error}"),
        }
    };
    sets.into_iter().map(open_with).collect()
}

/// The GPU with each set of kernels; none where there is no GPU, which is told.
fn opened() -> &'static [Opened] {
    match &*OPENED {
        Ok(opened) => opened,
        Err(reason) if variables::needs_gpu() => panic!("a GPU is needed and there is none ({reason})"),
        Err(reason) => {
            magray_skip::test(magray_skip::Need::Gpu, format_args!("no GPU ({reason})"));
            &[]
        }
    }
}

/// Runs a test on the GPU with each set of kernels; the text names the set.
pub(crate) fn each_set(test: impl Fn(&Arc<Cuda>, &str)) {
    for Opened { kernels, cuda, .. } in opened() {
        test(cuda, &format!("{}, {kernels} kernels", cuda.gpu().name));
    }
}

/// Runs a test on every rig of the GPU.
pub(crate) fn each_rig(test: impl Fn(&mut Rig<CudaSubject>)) {
    let seed = variables::seed();
    for Opened { kernels, cuda, precisions } in opened() {
        for &precision in precisions {
            let name = format!("{} {precision}, {kernels} kernels (seed {seed})", cuda.gpu().name);
            test(&mut Rig::new(name, CudaSubject { cuda: Arc::clone(cuda), precision }, seed));
        }
    }
}

impl CudaSubject {
    fn fresh_ops(&self) -> CudaOps {
        self.cuda.ops().expect("the GPU gives a stream")
    }
}

impl Subject for CudaSubject {
    type Device = Cuda;

    const AFFORDED: usize = 600_000_000;

    fn device(&self) -> &Cuda {
        &self.cuda
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn stored(&self) -> Stored {
        match self.precision {
            Precision::F32 | Precision::Tf32 => Stored::F32,
            Precision::F16 => Stored::F16,
            Precision::Int8 if self.cuda.gpu().capability < AMPERE => Stored::F16,
            Precision::Bf16 | Precision::Int8 => Stored::Bf16,
        }
    }

    fn ops(&self) -> CudaOps {
        self.fresh_ops()
    }

    fn other_ops(&self) -> CudaOps {
        self.fresh_ops()
    }

    fn feeder(&self) -> Option<CudaOps> {
        // Another stream would not wait for this one.
        None
    }

    fn batch_tolerance(&self) -> f32 {
        // Batches of another size get other tiles, which add in another order; now and then a number is then rounded the
        // other way, by the step of its format.
        match self.precision {
            Precision::F32 => 1e-5,
            Precision::Tf32 | Precision::F16 => 2e-4,
            Precision::Bf16 => 1.5e-3,
            Precision::Int8 => 1e-2,
        }
    }

    fn function_tolerance(&self) -> f64 {
        match self.stored() {
            Stored::F32 => 0.0,
            // Half of what the hardware's hyperbolic tangent is wrong by, and some for the polynomial before it.
            Stored::F16 | Stored::Bf16 => 3e-4,
        }
    }
}

#[test]
fn every_form_of_every_kernel_loads() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for Opened { kernels, cuda, .. } in opened() {
        let arch = Arch::of(cuda.gpu().capability);
        let specs: Vec<_> = all_specs().into_iter().filter(|spec| spec.runs_on(arch)).collect();
        cuda.prepare(&specs, threads).unwrap_or_else(|error| panic!("{kernels} kernels: {error}"));
    }
}
