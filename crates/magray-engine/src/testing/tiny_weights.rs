//! Random weights as a file of a model, for the tiny models of tests and demonstrations.
//! The same shapes and seed give the same bytes.

use magray_core::SplitMix64;
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::io;
use std::path::Path;

/// Writes weights of these names and shapes into a folder.
pub(super) fn write(folder: &Path, shapes: &[(String, Vec<usize>)], seed: u64) -> io::Result<()> {
    let mut random = SplitMix64::new(seed);
    let data: Vec<Vec<u8>> = shapes.iter().map(|(name, shape)| numbers(name, shape, &mut random)).collect();
    let views = shapes.iter().zip(&data).map(|((name, shape), bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
        Ok((name.as_str(), view.map_err(io::Error::other)?))
    });
    let views = views.collect::<io::Result<Vec<_>>>()?;
    std::fs::write(folder.join("model.safetensors"), serialize(views, None).map_err(io::Error::other)?)
}

/// Gains around 1, all else around 0.
fn numbers(name: &str, shape: &[usize], random: &mut SplitMix64) -> Vec<u8> {
    let is_gain = name.to_ascii_lowercase().contains("norm") && !name.ends_with("bias");
    let (centre, spread) = if is_gain { (1.0, 0.1) } else { (0.0, 0.3) };
    let count = shape.iter().product();
    (0..count).flat_map(|_| ((centre + spread * random.normal()) as f32).to_le_bytes()).collect()
}
