//! Tells by the profile of a run which provider computed, since a session that was asked for one may use another in silence.
//! Believes nothing but the profile.

use crate::bounded_file;
use magray_core::OnnxProvider;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A profile of one run has some kilobytes for each node.
const PROFILE_BYTES_MAX: u64 = 256 << 20;
/// The nodes that a model's time goes to. Nodes that work on shapes may stay on the CPU.
const ARITHMETIC: [&str; 14] = [
    "MatMul",
    "Gemm",
    "FusedMatMul",
    "FusedGemm",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QLinearMatMul",
    "MatMulNBits",
    "Attention",
    "QAttention",
    "MultiHeadAttention",
    "Conv",
    "LayerNormalization",
];

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    cat: String,
    #[serde(default)]
    args: Arguments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    op_name: String,
    provider: String,
}

/// Reads a profile; says why it does not prove that this provider computed, if it does not.
pub(super) fn check(profile: &Path, provider: OnnxProvider) -> Result<(), String> {
    let bytes = bounded_file::read(profile, PROFILE_BYTES_MAX);
    let bytes = bytes.map_err(|error| format!("the profile of its first run cannot be read: {error}"))?;
    check_events(&bytes, provider)
}

fn check_events(profile: &[u8], provider: OnnxProvider) -> Result<(), String> {
    let events: Vec<Event> = serde_json::from_slice(profile)
        .map_err(|error| format!("the profile of its first run is not what it should be: {error}"))?;
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut on_cpu: BTreeMap<&str, usize> = BTreeMap::new();
    for Event { args, .. } in events.iter().filter(|event| event.cat == "Node" && !event.args.provider.is_empty()) {
        *nodes.entry(&args.provider).or_default() += 1;
        if args.provider == OnnxProvider::Cpu.runtime_name() && ARITHMETIC.contains(&args.op_name.as_str()) {
            *on_cpu.entry(&args.op_name).or_default() += 1;
        }
    }
    let told = |counts: &BTreeMap<&str, usize>| {
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    if !nodes.contains_key(provider.runtime_name()) {
        return Err(format!("its first run was not computed by it: the nodes ran on {}", told(&nodes)));
    }
    if provider != OnnxProvider::Cpu && !on_cpu.is_empty() {
        return Err(format!("its first run was computed on the CPU in part: {}", told(&on_cpu)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_nodes(nodes: &[(&str, &str)], provider: OnnxProvider) -> Result<(), String> {
        let node = |(op, on): &(&str, &str)| {
            format!(r#"{{"cat":"Node","dur":5,"args":{{"op_name":"{op}","provider":"{on}"}}}}"#)
        };
        let mut events: Vec<String> = nodes.iter().map(node).collect();
        events.push(r#"{"cat":"Session","name":"model_run","dur":9,"args":{}}"#.to_owned());
        check_events(format!("[{}]", events.join(",")).as_bytes(), provider)
    }

    #[test]
    fn shapes_on_the_cpu_are_no_fallback_and_arithmetic_there_is() {
        const CUDA: &str = "CUDAExecutionProvider";
        const CPU: &str = "CPUExecutionProvider";
        assert_eq!(check_nodes(&[("MatMul", CUDA), ("Shape", CPU)], OnnxProvider::Cuda), Ok(()));
        let part = check_nodes(&[("MatMul", CUDA), ("MatMul", CPU)], OnnxProvider::Cuda).unwrap_err();
        assert!(part.contains("in part: 1 MatMul"), "{part}");
        let silent = check_nodes(&[("MatMul", CPU), ("Gemm", CPU)], OnnxProvider::Cuda).unwrap_err();
        assert!(silent.contains("ran on 2 CPUExecutionProvider"), "{silent}");
        assert_eq!(check_nodes(&[("MatMul", CPU)], OnnxProvider::Cpu), Ok(()));
        assert!(check_nodes(&[], OnnxProvider::Cuda).is_err() && check_events(b"{", OnnxProvider::Cpu).is_err());
    }
}
