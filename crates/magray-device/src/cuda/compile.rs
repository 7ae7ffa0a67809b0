//! What a kernel is compiled from and for, and the compiling.
//! Chooses no kernel and keeps nothing.

use super::arch::Arch;
use super::nvrtc::{CompileError, Nvrtc, Unit};
use super::sources;
use std::fmt;

/// A kernel in one of its forms.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelSpec {
    /// The file in `kernels/`.
    pub file: &'static str,
    /// The name of the `extern "C" __global__` function.
    pub entry: &'static str,
    /// What is defined while it is compiled.
    pub defines: Vec<(&'static str, String)>,
    /// The GPUs that can run it.
    pub needs: Needs,
}

/// Which GPUs have what a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Needs {
    /// Every GPU that is supported at all.
    Turing,
    /// bf16, tf32 and asynchronous copies: compute capability 8.0 and newer.
    Ampere,
    /// Products of whole warp groups: compute capability 9.0 alone.
    Hopper,
}

impl KernelSpec {
    /// A kernel with no definitions that runs everywhere.
    pub fn new(file: &'static str, entry: &'static str) -> Self {
        Self { file, entry, defines: Vec::new(), needs: Needs::Turing }
    }

    /// With a definition.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    /// With a requirement on the GPU.
    #[must_use]
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Whether GPUs of this architecture can run it.
    pub fn runs_on(&self, arch: Arch) -> bool {
        match self.needs {
            Needs::Turing => true,
            Needs::Ampere => arch.capability() >= (8, 0),
            Needs::Hopper => arch.capability() == (9, 0),
        }
    }
}

impl fmt::Display for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " -D{name}={value}"))
    }
}

/// Compiles a kernel for an architecture; returns the cubin.
pub fn compile(nvrtc: &Nvrtc, spec: &KernelSpec, arch: Arch) -> Result<Vec<u8>, CompileError> {
    let source = sources::kernel(spec.file).ok_or(CompileError::UnknownFile { file: spec.file })?;
    let headers = sources::headers_of(source);
    nvrtc.compile(&Unit { file: spec.file, source, headers: &headers, arch, options: options(spec, arch) })
}

/// The compiler's options; they are part of what names a cubin in the cache.
pub(super) fn options(spec: &KernelSpec, arch: Arch) -> Vec<String> {
    let fixed = [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned(), "-default-device".to_owned()];
    let defines = spec.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
    fixed.into_iter().chain(defines).collect()
}

#[cfg(test)]
mod tests {
    use super::super::libraries::SearchPath;
    use super::*;

    #[test]
    fn architectures_are_named_with_their_letter() {
        let names = [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 1)].map(|pair| Arch::of(pair).to_string());
        assert_eq!(names, ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_121a"]);
    }

    #[test]
    fn a_kernel_runs_where_its_needs_are_met() {
        let on = |needs| {
            let spec = KernelSpec::new("a.cu", "a").needs(needs);
            [(7, 5), (8, 6), (9, 0), (12, 0)].map(|pair| spec.runs_on(Arch::of(pair)))
        };
        assert_eq!(on(Needs::Turing), [true; 4]);
        assert_eq!(on(Needs::Ampere), [false, true, true, true]);
        assert_eq!(on(Needs::Hopper), [false, false, true, false]);
    }

    #[test]
    fn definitions_become_options() {
        let spec = KernelSpec::new("a.cu", "a").define("HEAD", 64).define("NUMBER", "bf16");
        assert_eq!(options(&spec, Arch::of((9, 0)))[0], "--gpu-architecture=sm_90a");
        assert_eq!(options(&spec, Arch::of((9, 0)))[3..], ["-DHEAD=64", "-DNUMBER=bf16"]);
        assert_eq!(spec.to_string(), "a.cu -DHEAD=64 -DNUMBER=bf16");
    }

    /// The headers alone, compiled by the real compiler where there is one.
    #[test]
    fn the_shared_headers_compile_and_a_mistake_is_told() {
        // Where `cargo xtask kernels` puts it.
        let search = SearchPath::system().with_python(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/nvrtc"));
        let Some(nvrtc) = Nvrtc::find(&search, None, None) else {
            return magray_skip::test(magray_skip::Need::Nvrtc, "no NVRTC");
        };
        let build = |source: &str| {
            let arch = Arch::of((9, 0));
            let options = options(&KernelSpec::new("t.cu", "t").define("ACTIVATION", 1).define("WIDTH", 3), arch);
            nvrtc.compile(&Unit { file: "t.cu", source, headers: &sources::headers_of(source), arch, options })
        };
        let good = "#include \"numbers.cuh\"\n#include \"activation.cuh\"\n\
            extern \"C\" __global__ void t(bf16* x) { x[WIDTH] = narrow<bf16>(activate(widen(x[0]))); }\n";
        assert!(build(good).unwrap().starts_with(b"\x7fELF"));
        let message = build("extern \"C\" __global__ void t() { wrong }\n").unwrap_err().to_string();
        assert!(message.contains("'t.cu'") && message.contains("sm_90a") && message.contains("wrong"), "{message}");
        assert!(message.contains("-DWIDTH=3"), "{message}");
        assert!(matches!(
            compile(&nvrtc, &KernelSpec::new("none.cu", "none"), Arch::of((9, 0))),
            Err(CompileError::UnknownFile { file: "none.cu" })
        ));
    }
}
