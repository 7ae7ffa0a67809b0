//! `magray gpu info`: the GPUs, their state, and which device is chosen and why.
//! Loads no model, measures nothing, takes no memory of a GPU. Loads the driver and ONNX Runtime to ask them what they are.

use clap::Args;
use magray_engine::{
    EncoderOptions, Reason, Verdict,
    engine::Outlook,
    gpu::{ArchiveError, GpuOptions, GpuPath, GpuStatus, KernelSources, Links, Peer, Sample, Survey},
    health::{Outage, utc_of},
};
use serde_json::{Value, json};

use super::{
    super::Context,
    onnx::OnnxReport,
    reset::outage_json,
    words::{Rows, push},
};
use crate::{
    commands::compute_args::ComputeArgs,
    exit::Failure,
    model,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray gpu info
  magray gpu info --json
  magray gpu info --model BAAI/bge-base-en-v1.5    the device that this model would be computed on

The speeds are those that were measured when the model was first loaded with --device auto.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuInfoArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

struct Report {
    survey: Survey,
    outlook: Outlook,
    /// Of the first GPU.
    kernels: Option<KernelSources>,
    onnx: OnnxReport,
    options: EncoderOptions,
    model: String,
    is_pulled: bool,
}

pub(crate) fn run(args: &GpuInfoArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    let options = model::encoder_options(&config);
    let model = config.model()?.name;
    let found = model::find(&config)?;
    let source = found.map(|folder| model::in_folder(&model, folder, &config, &context.console)).transpose()?;
    let outlook = Outlook::without_engine(source.as_ref(), &options)
        .map_err(|reason| Failure::Load { model: model.clone(), reason: Box::new(reason) })?;
    let survey = Survey::take(&options.gpu);
    let first = survey.gpus.iter().flatten().next();
    let kernels = first.map(|gpu| {
        let GpuOptions { search, kernel_cache, kernel_archive, .. } = &options.gpu;
        KernelSources::look(gpu.info.capability, search, kernel_cache.clone(), kernel_archive.clone())
    });
    let report = Report {
        survey,
        outlook,
        kernels,
        onnx: OnnxReport::look(&options),
        options,
        model,
        is_pulled: source.is_some(),
    };
    Ok(output::print(&if args.json { format!("{}\n", report.json()) } else { report.text() })?)
}

const MIB: u64 = 1 << 20;

impl Report {
    fn text(&self) -> String {
        let mut rows = Rows::new();
        let unknown = || "unknown".to_owned();
        match &self.survey.gpus {
            Ok(gpus) => {
                push(&mut rows, "driver", self.survey.driver_version.clone().unwrap_or_else(unknown));
                push(&mut rows, "CUDA", self.cuda_version().unwrap_or_else(unknown));
                self.push_onnx(&mut rows);
                for gpu in gpus {
                    push_gpu(&mut rows, gpu);
                }
                if let Some(kernels) = &self.kernels {
                    push(&mut rows, "kernels", kernel_words(kernels));
                }
            }
            Err(declined) => {
                push(&mut rows, "GPU", format!("none ({})", declined.code()));
                push(&mut rows, "", declined.to_string());
                self.push_onnx(&mut rows);
            }
        }
        self.push_choice(&mut rows);
        aligned(&rows)
    }

    fn push_onnx(&self, rows: &mut Rows) {
        push(rows, "TensorRT", self.onnx.tensorrt(&self.options).1);
        self.onnx.push(rows);
    }

    fn push_choice(&self, rows: &mut Rows) {
        push(rows, "", "");
        let model = &self.model;
        push(rows, "model", if self.is_pulled { model.clone() } else { format!("{model} (not pulled yet)") });
        match &self.outlook.verdict {
            Ok(Verdict { device, reason }) => {
                push(rows, "chosen", device.to_string());
                push(rows, "because", format!("{reason} ({})", reason.code()));
                if *reason == Reason::Unmeasured {
                    push(rows, "", "it is measured when the model is next loaded with --device auto");
                }
            }
            Err(refusal) => {
                push(rows, "chosen", "none");
                push(rows, "because", format!("{refusal} ({})", refusal.reason.code()));
            }
        }
        if let Some(scores) = self.outlook.scores {
            push(rows, "CPU", format!("{:.1} texts/s", scores.cpu_texts_per_s()));
            push(rows, "GPU", format!("{:.1} texts/s", scores.gpu_texts_per_s()));
            let threshold = self.options.gpu.rules.performance_threshold;
            push(rows, "speed-up", format!("{:.2}, at least {threshold} is asked for", scores.speedup()));
        }
        if let Some(need) = self.outlook.need_bytes {
            let free = self.outlook.free_bytes.map_or(String::new(), |free| format!(", {} MiB free", free / MIB));
            let limit = self.options.gpu.rules.memory_limit_bytes;
            let limit = limit.map_or(String::new(), |limit| format!(", limit {} MiB", limit / MIB));
            push(rows, "memory", format!("about {} MiB needed{free}{limit}", need.div_ceil(MIB)));
        }
    }

    fn cuda_version(&self) -> Option<String> {
        self.survey.cuda_version.map(|(major, minor)| format!("{major}.{minor}"))
    }

    fn json(&self) -> Value {
        let declined = self.survey.gpus.as_ref().err();
        let gpus: Vec<Value> = self.survey.gpus.iter().flatten().map(gpu_json).collect();
        json!({
            "driver_version": self.survey.driver_version,
            "cuda_version": self.cuda_version(),
            "tensorrt": self.onnx.tensorrt(&self.options).0,
            "onnx": self.onnx.json(),
            "gpus": gpus,
            "kernels": self.kernels.as_ref().map(kernels_json),
            "declined": declined.map(|declined| json!({ "code": declined.code(), "message": declined.to_string() })),
            "choice": self.choice_json(),
        })
    }

    fn choice_json(&self) -> Value {
        let (device, reason, message) = match &self.outlook.verdict {
            Ok(verdict) => (Some(verdict.device.to_string()), verdict.reason.code(), verdict.reason.to_string()),
            Err(refusal) => (None, refusal.reason.code(), refusal.to_string()),
        };
        let scores = self.outlook.scores;
        json!({
            "asked": self.options.device.to_string(),
            "device": device,
            "reason": reason,
            "message": message,
            "model": self.model,
            "model_is_pulled": self.is_pulled,
            "cpu_texts_per_s": scores.map(|scores| scores.cpu_texts_per_s()),
            "gpu_texts_per_s": scores.map(|scores| scores.gpu_texts_per_s()),
            "speedup": scores.map(|scores| scores.speedup()),
            "performance_threshold": self.options.gpu.rules.performance_threshold,
            "need_bytes": self.outlook.need_bytes,
            "free_bytes": self.outlook.free_bytes,
            "memory_limit_bytes": self.options.gpu.rules.memory_limit_bytes,
        })
    }
}

/// Where kernels come from, in the order in which they are looked for.
fn kernel_words(kernels: &KernelSources) -> String {
    let cache = kernels.cache.as_ref().map(|folder| format!("compiled before, in '{}'", folder.display()));
    let carried = match &kernels.carried {
        None => format!("none that came with magray for {}", kernels.arch),
        Some(Ok(0)) => format!("none for {} among those that came with magray", kernels.arch),
        Some(Ok(count)) => format!("{count} that came with magray for {}", kernels.arch),
        Some(Err(error)) => format!("those that came with magray are passed over: {error}"),
    };
    let compiler = match &kernels.compiler {
        Ok((major, minor)) => format!("NVRTC {major}.{minor}"),
        Err(declined) => format!("no compiler ({})", declined.code()),
    };
    cache.into_iter().chain([carried, compiler]).collect::<Vec<_>>().join("; ")
}

fn kernels_json(kernels: &KernelSources) -> Value {
    let error = |error: &ArchiveError| error.to_string();
    json!({
        "arch": kernels.arch.to_string(),
        "cache": kernels.cache,
        "carried": kernels.carried.as_ref().and_then(|carried| carried.as_ref().ok()),
        "carried_passed_over": kernels.carried.as_ref().and_then(|carried| carried.as_ref().err()).map(error),
        "nvrtc_version": kernels.compiler.as_ref().ok().map(|(major, minor)| format!("{major}.{minor}")),
    })
}

fn push_gpu(rows: &mut Rows, GpuStatus { info, sample, links, outage }: &GpuStatus) {
    let (major, minor) = info.capability;
    push(rows, "", "");
    push(rows, &format!("cuda:{}", info.index), info.name.clone());
    if let Some(Outage { since_unix_s, message, code, .. }) = outage {
        let since = utc_of(*since_unix_s);
        push(rows, "  out of service", format!("since {since}: {message} ({code})"));
        push(rows, "", format!("`magray gpu reset cuda:{}` returns it", info.index));
    }
    push(rows, "  compute", format!("capability {major}.{minor}, {} multiprocessors", info.multiprocessors));
    push(rows, "  memory", memory(info.memory_bytes, sample));
    let sample = [
        ("  temperature", temperature(sample)),
        ("  power", power(sample)),
        ("  clocks", clocks(sample)),
        ("  utilisation", sample.utilisation_percent.map(|percent| format!("{percent} %"))),
        ("  throttled", sample.throttle.as_ref().map(|_| throttle(sample))),
        ("  ECC errors", sample.ecc_uncorrected.map(|errors| format!("{errors} not corrected"))),
    ];
    for (name, value) in sample {
        push(rows, name, value.unwrap_or_else(|| "unknown".to_owned()));
    }
    push(rows, "  UUID", info.uuid.clone());
    push(rows, "  bus", info.pci_bus_id.clone());
    push_links(rows, links);
}

/// What is known of how a GPU is connected, and to which others.
fn push_links(rows: &mut Rows, links: &Links) {
    let pcie = links.pcie.map(|(generation, lanes)| format!("PCIe {generation} x {lanes}"));
    let node = links.numa_node.map(|node| format!("NUMA node {node}"));
    let nvlinks = links.nvlinks.map(|count| format!("{count} NVLinks up"));
    let own: Vec<String> = [pcie, node, nvlinks].into_iter().flatten().collect();
    if !own.is_empty() {
        push(rows, "  links", own.join(", "));
    }
    for Peer { index, path, has_access, has_nvlink } in &links.peers {
        let nvlink = has_nvlink.filter(|has_nvlink| *has_nvlink).map(|_| "NVLink");
        let access = has_access.map(|has_access| match has_access {
            true => "each reads the other's memory",
            false => "neither reads the other's memory",
        });
        let way: Vec<&str> = [nvlink, path.map(GpuPath::name), access].into_iter().flatten().collect();
        push(rows, &format!("  to cuda:{index}"), if way.is_empty() { "unknown".to_owned() } else { way.join(", ") });
    }
}

fn links_json(links: &Links) -> Value {
    let peer = |peer: &Peer| {
        json!({
            "device": format!("cuda:{}", peer.index),
            "path": peer.path.map(GpuPath::name),
            "has_access": peer.has_access,
            "has_nvlink": peer.has_nvlink,
        })
    };
    json!({
        "pcie_generation": links.pcie.map(|(generation, _)| generation),
        "pcie_lanes": links.pcie.map(|(_, lanes)| lanes),
        "numa_node": links.numa_node,
        "nvlinks": links.nvlinks,
        "peers": links.peers.iter().map(peer).collect::<Vec<_>>(),
    })
}

fn memory(total_bytes: u64, sample: &Sample) -> String {
    let total = sample.memory_total_bytes.unwrap_or(total_bytes);
    match sample.memory_used_bytes {
        Some(used) => format!("{} MiB, {} MiB used ({:.1} %)", total / MIB, used / MIB, percent(used, total)),
        None => format!("{} MiB", total / MIB),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn temperature(sample: &Sample) -> Option<String> {
    let limit = sample.slowdown_celsius.map_or(String::new(), |limit| format!(", slows down at {limit} C"));
    sample.temperature_celsius.map(|celsius| format!("{celsius} C{limit}"))
}

fn power(sample: &Sample) -> Option<String> {
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let limit = sample.power_limit_milliwatts.map_or(String::new(), |limit| format!(" of {:.0} W", watts(limit)));
    sample.power_milliwatts.map(|power| format!("{:.0} W{limit}", watts(power)))
}

fn clocks(sample: &Sample) -> Option<String> {
    let most = sample.clock_mhz_max.map_or(String::new(), |most| format!(" of {most} MHz"));
    let memory = sample.memory_clock_mhz.map_or(String::new(), |clock| format!(", memory {clock} MHz"));
    sample.clock_mhz.map(|clock| format!("{clock} MHz{most}{memory}"))
}

fn throttle_names(sample: &Sample) -> Option<Vec<&'static str>> {
    sample.throttle.as_ref().map(|reasons| reasons.iter().map(|reason| reason.name()).collect())
}

fn throttle(sample: &Sample) -> String {
    match throttle_names(sample).unwrap_or_default().as_slice() {
        [] => "no".to_owned(),
        names => names.join(", "),
    }
}

fn gpu_json(GpuStatus { info, sample, links, outage }: &GpuStatus) -> Value {
    let total = sample.memory_total_bytes.unwrap_or(info.memory_bytes);
    json!({
        "device": format!("cuda:{}", info.index),
        "name": info.name,
        "uuid": info.uuid,
        "pci_bus_id": info.pci_bus_id,
        "compute_capability": format!("{}.{}", info.capability.0, info.capability.1),
        "multiprocessors": info.multiprocessors,
        "memory_total_bytes": total,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_used_percent": sample.memory_used_bytes.map(|used| percent(used, total)),
        "temperature_celsius": sample.temperature_celsius,
        "slowdown_celsius": sample.slowdown_celsius,
        "shutdown_celsius": sample.shutdown_celsius,
        "power_milliwatts": sample.power_milliwatts,
        "power_limit_milliwatts": sample.power_limit_milliwatts,
        "clock_mhz": sample.clock_mhz,
        "clock_mhz_max": sample.clock_mhz_max,
        "memory_clock_mhz": sample.memory_clock_mhz,
        "utilisation_percent": sample.utilisation_percent,
        "throttle_reasons": throttle_names(sample),
        "ecc_uncorrected": sample.ecc_uncorrected,
        "recovery_action": sample.recovery_action,
        "lost": sample.lost,
        "links": links_json(links),
        "out_of_service": outage.as_ref().map(outage_json),
    })
}

#[cfg(test)]
mod tests;
