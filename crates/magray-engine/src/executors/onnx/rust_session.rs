//! Computes a graph by the engine in the program itself (rten), on the CPU.
//! Takes its graphs as hostile: what panics in it is an error of the model.

use crate::executors::catching;
use crate::executors::{Failure, FailureKind};
use crate::spec::OnnxSpec;
use rten::{Model, NodeId, RunOptions, ThreadPool, Value};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;
use std::sync::Arc;

/// A graph that is loaded.
pub(super) struct RustSession {
    model: Model,
    /// In the order of the spec.
    inputs: Vec<NodeId>,
    output: NodeId,
    threads: Arc<ThreadPool>,
}

impl RustSession {
    /// Loads a graph; on this many threads it runs.
    pub(super) fn open(spec: &OnnxSpec, threads: usize) -> Result<Self, String> {
        if spec.output.is_half {
            return Err("its output has 16 bits".to_owned());
        }
        let load = || {
            let model = Model::load_file(&spec.file).map_err(failed)?;
            let node = |name: &str| model.node_id(name).map_err(failed);
            let inputs = spec.inputs.iter().map(|input| node(&input.name)).collect::<Result<_, _>>()?;
            let output = node(&spec.output.name)?;
            Ok(Self { inputs, output, model, threads: Arc::new(ThreadPool::with_num_threads(threads)) })
        };
        catching(load).map_err(|failure| failure.message)
    }

    /// Runs the graph with these numbers, one list an input; the dimensions of its output, and its numbers.
    pub(super) fn run(&self, inputs: Vec<Vec<i32>>, shape: [usize; 2]) -> Result<(Vec<usize>, Vec<f32>), Failure> {
        catching(|| {
            let values = self.inputs.iter().zip(inputs).map(|(node, numbers)| {
                let value = Value::from_shape(&shape, numbers).map_err(failed)?;
                Ok((*node, value.into()))
            });
            let mut options = RunOptions::default();
            options.thread_pool = Some(Arc::clone(&self.threads));
            let outputs = self.model.run(values.collect::<Result<_, Failure>>()?, &[self.output], Some(options));
            let output = outputs.map_err(failed)?.pop().ok_or_else(|| failed("the graph gave no output"))?;
            let output: Tensor<f32> = output.try_into().map_err(failed)?;
            Ok((output.shape().to_vec(), output.to_vec()))
        })
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Transient, "onnx_run", error.to_string())
}
