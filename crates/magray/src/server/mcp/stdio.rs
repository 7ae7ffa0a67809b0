//! Carries the model context protocol through stdin and stdout, for an agent that starts this process.
//! Opens no port, and asks for no key: whoever started it may do what it may.

use magray_engine::engine::Engine;
use rmcp::{
    ServiceExt,
    service::{QuitReason, ServerInitializeError},
    transport::stdio_pipes,
};

use super::{Door, Tools};
use crate::{
    exit::Failure,
    server::{
        Start, StartError, keep_up,
        metrics::Metrics,
        models::Models,
        reload::Reloader,
        runtime, start_engine,
        state::{App, Parts},
        stopping::Signals,
    },
};

/// Serves the tools until stdin ends or a signal comes.
pub(crate) fn run_stdio(start: Start) -> Result<(), Failure> {
    let runtime = runtime().map_err(StartError::from)?;
    let ended = runtime.block_on(serve(start));
    // A thread that reads stdin reads on until there is something.
    runtime.shutdown_background();
    ended?.shut_down();
    Ok(())
}

async fn serve(start: Start) -> Result<Engine, Failure> {
    let Start { config, settings, settle, engine, console } = start;
    let mut signals = Signals::install().map_err(StartError::from)?;
    let engine_limits = engine.schedule.limits;
    let engine = start_engine(engine, &mut signals).await?;
    let models = Models::new(&engine, &settings.aliases).map_err(StartError::Alias)?;
    let app = App::new(Parts {
        engine: engine.clone(),
        metrics: Metrics::new(&models),
        models,
        engine_limits,
        memory_limit: config.gpu().rules.memory_limit_bytes,
        openai_tokens: None,
        live: settings.live,
        traces: None,
        reloader: Reloader::new(&config, None, settle),
    });
    tokio::spawn(keep_up(app.clone()));
    console.detail("waiting for an agent on stdin");
    tokio::select! {
        talked = talk(Tools::new(app, Door::Stdio)) => {
            if let Err(reason) = talked {
                console.warn(format_args!("the talk with the agent broke off: {reason}"));
            }
        }
        () = signals.stopped() => {}
    }
    Ok(engine)
}

/// Answers until the agent closes stdin.
async fn talk(tools: Tools) -> Result<(), String> {
    let talking = match tools.serve(stdio_pipes()).await {
        Ok(talking) => talking,
        // Nobody was there, or they have left before they said anything.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    match talking.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(error.to_string()),
        Ok(_) => Ok(()),
    }
}
