//! Carries the model context protocol through stdin and stdout, for an agent that starts this process.
//! Opens no port and asks for no key: the agent may do what the process may.

use magray_engine::engine::{Engine, TextCache};
use rmcp::{
    ServiceExt,
    service::{QuitReason, ServerInitializeError},
    transport::stdio_pipes,
};

use super::{Tools, Transport, lines::Lines};
use crate::critics::Panel;
use crate::server::{
    Start, StartError,
    app::{App, Page, Parts},
    catalogue::Catalogue,
    collections::LazyCollections,
    metrics::Metrics,
    models::Models,
    reload::Reloader,
    runtime,
    signals::Signals,
    start_engine, upkeep,
};

pub(crate) fn run_stdio(start: Start) -> Result<(), StartError> {
    let runtime = runtime()?;
    let ended = runtime.block_on(serve(start));
    // The thread that reads stdin cannot be stopped.
    runtime.shutdown_background();
    ended?.shut_down();
    Ok(())
}

async fn serve(start: Start) -> Result<Engine, StartError> {
    let Start { config, settings, settle, engine, console, .. } = start;
    let mut signals = Signals::install()?;
    let engine_limits = engine.schedule.limits;
    let engine = start_engine(engine, &mut signals).await?;
    let models = Models::new(&engine, &settings.aliases).map_err(StartError::Alias)?;
    let critics = Panel::of(&config)?;
    let host = config.rows_host_rules().and_then(|rules| engine.rows_host(rules));
    let parts = Parts {
        text_cache: TextCache::new(settings.text_cache),
        engine: engine.clone(),
        metrics: Metrics::new(&models, critics.names(), false),
        critics,
        models,
        engine_limits,
        memory_limit: config.gpu().rules.memory_limit_bytes,
        catalogue: Catalogue::new(&config)?,
        collections: LazyCollections::new(config.collections_folder(), host),
        openai_tokens: None,
        traces: None,
        reloader: Reloader::new(&config, None, settle),
        page: Page::default(),
    };
    let app = App::new(parts, settings.live);
    tokio::spawn(upkeep(app.clone()));
    console.detail("waiting for an agent on stdin");
    tokio::select! {
        served = serve_tools(Tools::new(app, Transport::Stdio)) => {
            if let Err(reason) = served {
                console.warn(format_args!("the connection to the agent failed: {reason}"));
            }
        }
        () = signals.stopped() => {}
    }
    Ok(engine)
}

async fn serve_tools(tools: Tools) -> Result<(), String> {
    let serving = match tools.serve(Lines::new(stdio_pipes())).await {
        Ok(serving) => serving,
        // The agent has closed stdin before its first message.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    match serving.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(error.to_string()),
        Ok(_) => Ok(()),
    }
}
