//! What `gpu info` says of ONNX Runtime: the library, its version, and the providers that it was built with.
//! Opens no session: which provider computes is told with each answer.

use magray_engine::{
    EncoderOptions, OnnxProvider,
    executors::{Failure, Library, OnnxDevice},
};
use serde_json::{Value, json};

use super::words::{Rows, push};

pub(super) struct OnnxReport {
    /// The library, or why there is none.
    library: Result<Found, Failure>,
}

struct Found {
    path: String,
    version: String,
    providers: Vec<OnnxProvider>,
}

impl OnnxReport {
    pub(super) fn look(options: &EncoderOptions) -> Self {
        let device = OnnxDevice::new(&options.onnx, &options.gpu.search, 1);
        let found = |library: Library| Found {
            path: library.path.display().to_string(),
            version: library.version(),
            providers: library.providers(),
        };
        Self { library: device.load_library().map(found) }
    }

    /// Whether TensorRT may compute, and that in words.
    pub(super) fn tensorrt(&self, options: &EncoderOptions) -> (bool, String) {
        let is_there = self.library.as_ref().is_ok_and(|found| found.providers.contains(&OnnxProvider::TensorRt));
        match (options.onnx.use_tensorrt, is_there) {
            (false, _) => (false, "off".to_owned()),
            (true, true) => (true, "tried before CUDA, for models in ONNX form".to_owned()),
            (true, false) => (false, "off: ONNX Runtime is not there, or was built without it".to_owned()),
        }
    }

    pub(super) fn push(&self, rows: &mut Rows) {
        match &self.library {
            Ok(Found { path, version, providers }) => {
                push(rows, "ONNX Runtime", format!("{version}, {path}"));
                let names: Vec<&str> = providers.iter().map(|provider| provider.code()).collect();
                push(rows, "", format!("built with {}", names.join(", ")));
            }
            Err(failure) => push(rows, "ONNX Runtime", format!("none: {failure}")),
        }
    }

    pub(super) fn json(&self) -> Value {
        match &self.library {
            Ok(Found { path, version, providers }) => {
                let names: Vec<&str> = providers.iter().map(|provider| provider.code()).collect();
                json!({ "library": path, "version": version, "providers": names })
            }
            Err(failure) => json!({ "declined": { "code": failure.code, "message": failure.message } }),
        }
    }
}

#[cfg(test)]
impl OnnxReport {
    /// A library that was not found.
    pub(super) fn none() -> Self {
        let message = "no library".to_owned();
        let kind = magray_engine::executors::FailureKind::Transient;
        Self { library: Err(Failure { kind, code: "onnx_library".to_owned(), message }) }
    }
}
