//! How the settings ask for requests to be queued, batched and watched over.
//! Starts nothing.

use std::time::Duration;

use magray_core::DeviceName;
use magray_engine::{
    engine::{Batching, Gpus, Keeping, Limits, ModelPlan, Options, Priority, Sizing, SpeedWatch, Strategy},
    health::AlertOptions,
    testing::{FaultPlan, FaultPlanError},
};
use magray_index::HostRules;

use super::{Config, ConfigError, Source, Value, value::NEVER};

/// The settings of batches of fixed size.
const FIXED_SIZES: [&str; 2] = ["gpu.batch.default_size", "gpu.batch.timeout_ms"];

#[derive(Clone, Debug)]
pub(crate) struct EngineSettings {
    pub(crate) schedule: Options,
    pub(crate) gpus: Gpus,
    pub(crate) strategy: Strategy,
    /// The interval of the GPU monitor; none: it is off.
    pub(crate) monitor_interval: Option<Duration>,
    pub(crate) alerts: AlertOptions,
    pub(crate) faults: Option<FaultPlan>,
    pub(crate) plans: ModelPlans,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelPlans {
    /// For models without a plan of their own.
    normal: ModelPlan,
    /// Whether models leave by themselves at all.
    may_leave: bool,
    idle_timeouts: Vec<(String, Option<Duration>)>,
    pinned: Vec<String>,
    priorities: Vec<(String, Priority)>,
}

impl ModelPlans {
    pub(crate) fn of(&self, name: &str) -> ModelPlan {
        let timeout = find(&self.idle_timeouts, name).map(|timeout| with_timeout(self.normal, timeout));
        let plan = timeout.filter(|_| self.may_leave).unwrap_or(self.normal);
        ModelPlan {
            is_pinned: self.pinned.iter().any(|pinned| pinned == name),
            priority: find(&self.priorities, name).unwrap_or(self.normal.priority),
            ..plan
        }
    }
}

fn find<T: Copy>(rows: &[(String, T)], name: &str) -> Option<T> {
    rows.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

/// A time of zero says that it leaves as soon as it is not used.
fn with_timeout(plan: ModelPlan, timeout: Option<Duration>) -> ModelPlan {
    ModelPlan { idle_timeout: timeout, offload_after_use: timeout == Some(Duration::ZERO), ..plan }
}

impl Config {
    pub(crate) fn engine(&self) -> Result<EngineSettings, ConfigError> {
        let schedule = Options {
            limits: self.limits(),
            batching: self.batching(),
            keeping: self.keeping(),
            speed: self.speed_watch(),
            ..Options::default()
        };
        let interval = self.whole("gpu.monitoring.interval_ms").map(|ms| Duration::from_millis(ms as u64));
        Ok(EngineSettings {
            schedule,
            gpus: self.gpus(),
            strategy: self.strategy(),
            monitor_interval: interval.filter(|_| self.is_on("gpu.monitoring.enabled")),
            alerts: self.alerts(),
            faults: self.faults()?,
            plans: self.model_plans(),
        })
    }

    fn speed_watch(&self) -> SpeedWatch {
        let normal = SpeedWatch::default();
        SpeedWatch {
            is_on: self.is_on("gpu.performance_monitoring") && self.is_on("gpu.monitoring.enabled"),
            window: self.seconds("gpu.monitoring.slow_after_s").unwrap_or(normal.window),
            ..normal
        }
    }

    fn keeping(&self) -> Keeping {
        Keeping {
            worker: self.seconds("gpu.memory.worker_kept_s"),
            host: self.seconds("gpu.memory.host_kept_s"),
            load_max: self.seconds("gpu.memory.load_max_s").unwrap_or(Keeping::default().load_max),
        }
    }

    /// When vectors are searched on a GPU; `None`: never.
    pub(crate) fn rows_host_rules(&self) -> Option<HostRules> {
        let may_leave = self.is_on("gpu.memory.offload_to_cpu");
        let bytes_min = self.whole("search.gpu_from_mib")?.saturating_mul(1 << 20);
        Some(HostRules { bytes_min, idle_max: self.seconds("gpu.idle_timeout_s").filter(|_| may_leave) })
    }

    fn model_plans(&self) -> ModelPlans {
        let may_leave = self.is_on("gpu.memory.offload_to_cpu");
        // A server preloads by itself, when it listens.
        let normal = ModelPlan { is_preloaded: false, ..ModelPlan::default() };
        let timed = with_timeout(normal, self.seconds("gpu.idle_timeout_s").filter(|_| may_leave));
        let after_use = timed.offload_after_use || (may_leave && self.is_on("gpu.memory.offload_after_use"));
        let rows = |key| match &self.entry(key).value {
            Value::Table(rows) => rows.clone(),
            _ => Vec::new(),
        };
        let timeout = |text: &str| match text {
            NEVER => None,
            // Read and checked by the table.
            seconds => Some(Duration::from_secs(seconds.parse().unwrap_or_default())),
        };
        // Checked by the table.
        let priority = |word: &str| word.parse::<Priority>().unwrap_or_default();
        ModelPlans {
            normal: ModelPlan { offload_after_use: after_use, ..timed },
            may_leave,
            idle_timeouts: named(rows("gpu.models.idle_timeout_s"), timeout),
            pinned: match &self.entry("gpu.models.pinned").value {
                Value::List(names) => names.clone(),
                _ => Vec::new(),
            },
            priorities: named(rows("gpu.models.priority"), priority),
        }
    }

    fn seconds(&self, key: &str) -> Option<Duration> {
        self.whole(key).map(|seconds| Duration::from_secs(seconds as u64))
    }

    fn limits(&self) -> Limits {
        let limits = Limits::default();
        Limits {
            requests_max: self.whole("queue.requests_max").unwrap_or(limits.requests_max),
            tokens_max: self.whole("queue.tokens_max").map_or(limits.tokens_max, |tokens| tokens as u64),
            ..limits
        }
    }

    fn batching(&self) -> Batching {
        let normal = Batching::default();
        let whole = |key, otherwise: u32| self.whole(key).and_then(|n| u32::try_from(n).ok()).unwrap_or(otherwise);
        let sizing = match self.is_sizing_fixed() {
            false => Sizing::Adaptive,
            true => Sizing::Fixed {
                texts: whole("gpu.batch.default_size", 32),
                timeout: Duration::from_millis(whole("gpu.batch.timeout_ms", 10).into()),
            },
        };
        Batching { sizing, texts_max: whole("gpu.batch.max_size", normal.texts_max), ..normal }
    }

    /// Whether batches have a size of their own: it was asked for, or a size or a time was set and nothing said of fitting.
    fn is_sizing_fixed(&self) -> bool {
        let is_set = |key| self.entry(key).source != Source::Default;
        match is_set("gpu.batch.adaptive_sizing") {
            true => !self.is_on("gpu.batch.adaptive_sizing"),
            false => FIXED_SIZES.into_iter().any(is_set),
        }
    }

    /// What was set and changes nothing beside another setting, for people.
    pub(crate) fn ineffective(&self) -> Vec<String> {
        let is_set = |key: &&str| self.entry(key).source != Source::Default;
        let shown = |key: &str| {
            format!("{key} ({}) changes nothing while gpu.batch.adaptive_sizing is true", self.entry(key).source)
        };
        let set = FIXED_SIZES.into_iter().filter(is_set).filter(|_| !self.is_sizing_fixed());
        let is_off = !self.is_on("gpu.multi_gpu.enabled");
        // Models may be assigned to several GPUs all the same.
        let for_several = [("gpu.multi_gpu.strategy", self.gpus() == Gpus::One), ("gpu.multi_gpu.device_ids", true)];
        let several =
            for_several.into_iter().filter(|(key, is_idle)| is_off && *is_idle && is_set(key)).map(|(key, _)| {
                format!("{key} ({}) changes nothing while gpu.multi_gpu.enabled is false", self.entry(key).source)
            });
        set.map(shown).chain(several).collect()
    }

    fn strategy(&self) -> Strategy {
        match self.text("gpu.multi_gpu.strategy").as_deref() {
            Some("data") => Strategy::Data,
            Some("tensor") => Strategy::Tensor,
            Some("pipeline") => Strategy::Pipeline,
            _ => Strategy::Auto,
        }
    }

    fn gpus(&self) -> Gpus {
        if !self.is_on("gpu.multi_gpu.enabled") {
            return self.assigned_gpus();
        }
        match &self.entry("gpu.multi_gpu.device_ids").value {
            Value::List(numbers) if !numbers.is_empty() => {
                Gpus::These(numbers.iter().filter_map(|number| number.parse().ok()).collect())
            }
            _ => Gpus::All,
        }
    }

    /// One GPU, and those that models are assigned to.
    fn assigned_gpus(&self) -> Gpus {
        let one = self.whole("gpu.device_id").unwrap_or_default();
        let assignments = self.assignments();
        let others = assignments.devices().chain(self.critic_devices()).filter_map(|device| match device {
            DeviceName::Cuda(index) => Some(index),
            DeviceName::Cpu | DeviceName::Simulated(_) | DeviceName::Onnx(_) => None,
        });
        let all: Vec<usize> = std::iter::once(one).chain(others).collect();
        if all.iter().all(|index| *index == one) { Gpus::One } else { Gpus::These(all) }
    }

    fn alerts(&self) -> AlertOptions {
        let normal = AlertOptions::default();
        let cooldown = self.whole("gpu.monitoring.alert_cooldown_s");
        AlertOptions {
            webhook: self.text("gpu.monitoring.alert_webhook"),
            cooldown: cooldown.map_or(normal.cooldown, |seconds| Duration::from_secs(seconds as u64)),
            ..normal
        }
    }

    fn faults(&self) -> Result<Option<FaultPlan>, ConfigError> {
        let text = self.texts("faults.plan").join(",");
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |error: FaultPlanError| ConfigError::BadValue {
            location: "faults.plan".to_owned(),
            shown: text.clone(),
            allowed: format!("a fault plan (docs/faults.md): {error}"),
        };
        text.parse().map(Some).map_err(wrong)
    }
}

fn named<T>(rows: Vec<(String, String)>, read: impl Fn(&str) -> T) -> Vec<(String, T)> {
    rows.into_iter().map(|(name, text)| (name, read(&text))).collect()
}
