//! Opens the model that the settings name, pulling it where that is wanted.
//! Knows neither formats of weights nor where a pull comes from.

use std::{
    cell::RefCell,
    fs,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use indicatif::ProgressBar;
use magray_engine::{
    DeviceName, EncoderOptions, EncoderShape, LoadError,
    engine::ModelSource,
    spec::{
        Does,
        decoder::{DecoderSource, SyntheticDecoder},
    },
    store::{ModelRef, NameError, PullEvent, Store, known_models},
};
use sha2::{Digest, Sha256};

use crate::{
    config::{Config, ModelSettings},
    console::Console,
    exit::Failure,
    nearest::nearest,
    output::hex,
};

const SYNTHETIC: &str = "synthetic:";

pub(crate) fn source_named(name: &str, config: &Config, console: &Console) -> Result<ModelSource, Failure> {
    match name.strip_prefix(SYNTHETIC) {
        Some(shape) => synthetic(name, shape),
        None if is_gguf(name) => Ok(ModelSource::Decoder(DecoderSource::Path(PathBuf::from(name)))),
        None => in_folder(name, stored_folder_of(name, config, console)?, config, console),
    }
}

/// The model in a folder as the settings want it to be computed.
pub(crate) fn in_folder(
    name: &str,
    folder: PathBuf,
    config: &Config,
    console: &Console,
) -> Result<ModelSource, Failure> {
    let chosen = ModelSource::in_folder(folder, config.backend(), config.embed().precision);
    let (source, reason) = chosen.map_err(|error| load_failure(name, error.into()))?;
    if let Some(reason) = reason {
        console.note(format_args!("ONNX Runtime computes '{name}', since magray itself does not: {reason}"));
    }
    Ok(source)
}

/// Whether a name is that of a GGUF file.
fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
}

/// A model of random weights: a language model, or an encoder.
fn synthetic(name: &str, shape: &str) -> Result<ModelSource, Failure> {
    let generates = shape.parse::<SyntheticDecoder>();
    let source = generates.map(|model| ModelSource::Decoder(DecoderSource::Synthetic(model))).or_else(|unknown| {
        let embeds = shape.parse::<EncoderShape>().map(ModelSource::Synthetic);
        embeds.map_err(|error| format!("{error}; {unknown}"))
    });
    source.map_err(|error| Failure::Usage(format!("--model {name}: {error}")))
}

pub(crate) fn find(config: &Config) -> Result<Option<PathBuf>, Failure> {
    let settings = config.model()?;
    let store = Store::open(settings.store);
    Ok(store.find(&parse(&settings.name, &store)?)?)
}

/// The folder of the model of the settings, pulled where that may be done without asking.
pub(crate) fn stored_folder(config: &Config, console: &Console) -> Result<PathBuf, Failure> {
    stored_folder_of(&config.model()?.name, config, console)
}

fn stored_folder_of(name: &str, config: &Config, console: &Console) -> Result<PathBuf, Failure> {
    let settings = config.model()?;
    let store = Store::open(settings.store.clone());
    let model = parse(name, &store)?;
    match store.find(&model)? {
        Some(folder) => Ok(folder),
        None if model.is_default() => pull(&store, &model, &settings, false, console),
        None => {
            let hint = meant(name, &store).map_or_else(String::new, |meant| format!(" (did you mean '{meant}'?)"));
            Err(Failure::NotPulled { model: name.to_owned(), hint })
        }
    }
}

/// The model that a name means.
pub(crate) fn parse(name: &str, store: &Store) -> Result<ModelRef, Failure> {
    ModelRef::parse(name).map_err(|error| match (&error, meant(name, store)) {
        (NameError::NoOrganisation { .. }, Some(meant)) => Failure::UnknownModel { name: name.to_owned(), meant },
        _ => error.into(),
    })
}

/// The name that was probably meant: of a model of the store, or of a well-known one. `None` if this one is known.
fn meant(name: &str, store: &Store) -> Option<String> {
    let mut known: Vec<String> = store.list().unwrap_or_default().into_iter().map(|model| model.name).collect();
    known.extend(known_models().map(|(organisation, name)| format!("{organisation}/{name}")));
    if known.iter().any(|known| known == name) || known_models().any(|(_, short)| short.eq_ignore_ascii_case(name)) {
        return None;
    }
    let Some((_, last)) = name.rsplit_once('/') else {
        let short = known_models().map(|(_, name)| name);
        return nearest(name, known.iter().map(String::as_str).chain(short)).map(str::to_owned);
    };
    // The right name of the wrong organisation is nearer than any other name.
    let of_another = known_models().find(|(_, known)| known.eq_ignore_ascii_case(last));
    match of_another {
        Some((organisation, name)) => Some(format!("{organisation}/{name}")),
        None => nearest(name, known.iter().map(String::as_str)).map(str::to_owned),
    }
}

/// Tells a model's files from others: by their names and sizes, and by where they begin and end.
pub(crate) fn fingerprint(folder: &Path) -> io::Result<String> {
    /// Differs between any two models of one shape, in the weights as well as in the settings.
    const ENDS_BYTES: u64 = 1 << 20;
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => paths.extend(fs::read_dir(&path)?.filter_map(|entry| Some(entry.ok()?.path()))),
            false => paths.push(path),
        }
    }
    paths.retain(|path| {
        path.extension()
            .is_some_and(|ending| ["json", "safetensors", "onnx", "gguf"].iter().any(|known| ending == *known))
    });
    paths.sort();
    let mut hash = Sha256::new();
    for path in paths {
        let mut file = fs::File::open(&path)?;
        let bytes = file.metadata()?.len();
        hash.update(path.strip_prefix(folder).unwrap_or(&path).as_os_str().as_encoded_bytes());
        hash.update(bytes.to_le_bytes());
        let mut ends = Vec::new();
        file.by_ref().take(ENDS_BYTES).read_to_end(&mut ends)?;
        file.seek(SeekFrom::Start(bytes.saturating_sub(ENDS_BYTES)))?;
        file.take(ENDS_BYTES).read_to_end(&mut ends)?;
        hash.update(&ends);
    }
    Ok(hex(hash)[..16].to_owned())
}

/// The device that a model is assigned to by the settings.
pub(crate) fn assigned(name: &str, source: &ModelSource, config: &Config) -> Result<Option<DeviceName>, Failure> {
    // ONNX Runtime is a device of its own.
    if source.is_onnx() {
        return Ok(None);
    }
    let does = match source {
        ModelSource::Synthetic(_) => Does::Embed,
        source => source.spec().map_err(|reason| load_failure(name, reason.into()))?.does(),
    };
    Ok(config.assignments().of(name, does))
}

/// How a model that cannot be loaded is told.
pub(crate) fn load_failure(model: &str, reason: LoadError) -> Failure {
    match reason {
        // The model has nothing to do with it.
        LoadError::Device(refusal) => Failure::Device(refusal),
        reason => Failure::Load { model: model.to_owned(), reason: Box::new(reason) },
    }
}

pub(crate) fn encoder_options(config: &Config) -> EncoderOptions {
    let (cpu, embed) = (config.cpu(), config.embed());
    EncoderOptions {
        precision: embed.precision,
        threads: cpu.threads,
        cpu_path: cpu.path,
        kv: config.kv_format(),
        gpu_layers: config.gpu_layers(),
        device: embed.device,
        gpu: config.gpu(),
        onnx: config.onnx(),
    }
}

pub(crate) fn pull(
    store: &Store,
    model: &ModelRef,
    settings: &ModelSettings,
    refresh: bool,
    console: &Console,
) -> Result<PathBuf, Failure> {
    let options = settings.pull_options(refresh);
    if let Some(reason) = &settings.token_kept_back {
        console.warn(format_args!("{reason}"));
    }
    let progress = PullProgress { console, bar: RefCell::new(None) };
    let pulled = store.pull(model, &options, &mut |event| progress.show(event));
    progress.end_bar();
    Ok(pulled?)
}

struct PullProgress<'a> {
    console: &'a Console,
    bar: RefCell<Option<(String, ProgressBar)>>,
}

impl PullProgress<'_> {
    fn show(&self, event: PullEvent<'_>) {
        if let PullEvent::File { name, done, total } = event {
            return self.show_file(name, done, total);
        }
        self.end_bar();
        match event {
            PullEvent::Waiting { model } => self.console.note(format_args!("waiting for another pull of {model}")),
            PullEvent::Replacing { model, reason } => {
                self.console.warn(format_args!("{model} is pulled again: {reason}"));
            }
            PullEvent::Started { model, source } => {
                self.console.note(format_args!("pulling {model} from the {source}"))
            }
            PullEvent::Retrying { what, delay, reason, .. } => {
                self.console.warn(format_args!("{what}: {reason}; again in {:.1} s", delay.as_secs_f64()));
            }
            PullEvent::SourceFailed { source, reason } => {
                self.console.note(format_args!("the {source} failed: {reason}"));
            }
            PullEvent::Finished { dir, bytes } => {
                self.console.note(format_args!("pulled {} into {}", megabytes(bytes), dir.display()));
            }
            PullEvent::Listed { .. } | PullEvent::File { .. } => {}
        }
    }

    fn show_file(&self, name: &str, done: u64, total: Option<u64>) {
        /// A smaller file is here before its bar could be read.
        const BAR_BYTES_MIN: u64 = 1 << 20;
        if total.is_some_and(|total| total < BAR_BYTES_MIN) {
            return self.end_bar();
        }
        let mut bar = self.bar.borrow_mut();
        if bar.as_ref().is_none_or(|(of, _)| of != name) {
            if let Some((_, old)) = bar.take() {
                old.finish_and_clear();
            }
            let new = self.console.bytes_bar(total);
            new.set_prefix(name.to_owned());
            *bar = Some((name.to_owned(), new));
        }
        if let Some((_, bar)) = bar.as_ref() {
            bar.set_position(done);
        }
    }

    fn end_bar(&self) {
        if let Some((_, bar)) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
