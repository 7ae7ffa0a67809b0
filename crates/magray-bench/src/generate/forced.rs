//! Logits of given tokens, for comparisons with other programs: whatever a model would say, the next token is the given one.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::Arc,
};

use magray_device::{KvFormat, cpu::Cpu};
use magray_engine::decoder::{Decoder, DecoderFiles};

use super::Running;
use crate::failure::Failure;

/// Writes the logits of each list's tokens as 32-bit floats, a token after the other: those of the tokens from `from` on.
pub(super) fn run(
    (cpu, format): (&Arc<Cpu>, KvFormat),
    files: &DecoderFiles,
    paths: (&Path, &Path),
    from: usize,
) -> Result<(), Failure> {
    let unusable = |path: &Path, reason: &dyn std::fmt::Display| {
        Failure::Usage(format!("cannot use '{}': {reason}", path.display()))
    };
    let text = std::fs::read_to_string(paths.0).map_err(|reason| unusable(paths.0, &reason))?;
    let lists: Result<Vec<Vec<u32>>, _> = text.lines().map(serde_json::from_str).collect();
    let lists = lists.map_err(|reason| unusable(paths.0, &reason))?;
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let known = files.spec().vocab;
    if lists.iter().any(Vec::is_empty) || lists.iter().flatten().any(|id| *id as usize >= known) {
        return Err(unusable(paths.0, &format!("lists of ids below {known} are needed")));
    }
    let decoder = Decoder::load(&**cpu, files, longest).map_err(|reason| unusable(paths.0, &reason))?;
    let mut running = Running::new((cpu, format), &decoder);
    let write = |reason: std::io::Error| unusable(paths.1, &reason);
    let mut out = BufWriter::new(File::create(paths.1).map_err(write)?);
    for ids in &lists {
        let at_once = if from == 0 { ids.len() } else { from.min(ids.len()) };
        let rows: Vec<usize> = if from == 0 { (0..at_once).collect() } else { vec![at_once - 1] };
        write_floats(&mut out, running.step(&ids[..at_once], 0, &rows)).map_err(write)?;
        for at in at_once..ids.len() {
            write_floats(&mut out, running.step(&ids[at..=at], at, &[0])).map_err(write)?;
        }
    }
    out.flush().map_err(write)
}

fn write_floats(out: &mut impl Write, floats: &[f32]) -> std::io::Result<()> {
    floats.iter().try_for_each(|float| out.write_all(&float.to_le_bytes()))
}
