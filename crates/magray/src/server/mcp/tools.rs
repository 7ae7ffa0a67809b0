//! The tools: thin callers of what the other APIs call too.
//! A wrong call is an error in the tool's result, so that the agent reads it.

use std::borrow::Cow;

use magray_engine::engine::{Move, Priority};
use rmcp::{Json, handler::server::wrapper::Parameters, tool, tool_router};

use super::{
    Tools,
    schema::{
        Alias, Compared, Embedded, ListedModel, ModelList, OneModel, OneOrAll, Preheat, PriorityChange, Query, Ranked,
        Reranked, Sentences, Texts, TimeoutChange, short,
    },
};
use crate::{
    control::{Cleared, EngineReport},
    server::{
        apis::{
            gpu::{self, MovedReport, PriorityReport, TimeoutReport},
            models::ServedReport,
        },
        app::App,
        errors::Problem,
        inputs::Input,
        model_changes,
        models::Does,
        ranking::Ranking,
        request_record::RequestRecord,
        service::{Computed, Reading},
        vectors::{cut, ranked},
    },
};

#[tool_router(router = routes, vis = "pub(super)")]
impl Tools {
    /// Shows where the models are, how much GPU memory they hold, and the state of the devices.
    #[tool(annotations(
        title = "GPU status",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn get_gpu_status(&self) -> Result<Json<EngineReport>, String> {
        Ok(Json(self.app.report()))
    }

    /// Takes models off the GPUs and gives the memory back; their weights stay in the memory of the host, so that they
    /// return fast. Calls that run end first, and later ones bring the model back.
    #[tool(annotations(
        title = "Offload models from the GPU",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn offload_gpu(&self, Parameters(which): Parameters<OneOrAll>) -> Result<Json<MovedReport>, String> {
        result(gpu::moved(&self.app, which.model.as_deref(), Move::Offload).await)
    }

    /// Takes models out of all memory, of the GPUs and of the host. The next call that needs one loads it from disk.
    #[tool(annotations(
        title = "Release models from all memory",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn release_gpu(&self, Parameters(which): Parameters<OneOrAll>) -> Result<Json<MovedReport>, String> {
        result(gpu::moved(&self.app, which.model.as_deref(), Move::Release).await)
    }

    /// Loads models onto a GPU before a call needs them; onto the CPU where there is no GPU.
    #[tool(annotations(
        title = "Preheat models on the GPU",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn preheat_gpu(&self, Parameters(which): Parameters<Preheat>) -> Result<Json<MovedReport>, String> {
        let priority = which.priority.map_or(Ok(Priority::Normal), |word| word.parse());
        let how = Move::Preheat(priority.map_err(|unknown| unknown.to_string())?);
        result(gpu::moved(&self.app, which.model.as_deref(), how).await)
    }

    /// Changes how much models count when they compete for the memory of a GPU.
    #[tool(annotations(
        title = "Change the priority of models",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn update_gpu_priority(
        &self,
        Parameters(change): Parameters<PriorityChange>,
    ) -> Result<Json<PriorityReport>, String> {
        result(gpu::set_priority(&self.app, change.model.as_deref(), &change.priority))
    }

    /// Frees memory of the GPUs that is cached and not used. Models stay where they are.
    #[tool(annotations(
        title = "Clear the cache of the GPUs",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn clear_gpu_cache(&self) -> Result<Json<Cleared>, String> {
        result(gpu::cleared(&self.app).await)
    }

    /// Changes how long models stay on a GPU without being used.
    #[tool(annotations(
        title = "Change the idle timeout",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn update_gpu_timeout(
        &self,
        Parameters(change): Parameters<TimeoutChange>,
    ) -> Result<Json<TimeoutReport>, String> {
        result(gpu::set_timeout(&self.app, change.model.as_deref(), &change.timeout_seconds))
    }

    /// Turns texts into vectors, one a text: texts of like meaning have vectors that are near each other.
    #[tool(annotations(
        title = "Embed texts",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn embed_texts(&self, Parameters(texts): Parameters<Texts>) -> Result<Json<Embedded>, String> {
        result(self.embed(texts).await)
    }

    /// Compares the meaning of sentences with one: the cosines of their vectors, 1 for the same.
    #[tool(annotations(
        title = "Compare sentences",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn similarity(&self, Parameters(sentences): Parameters<Sentences>) -> Result<Json<Compared>, String> {
        result(self.compare(sentences).await)
    }

    /// Puts documents in the order of how well they fit a query, the best first.
    #[tool(annotations(
        title = "Rerank documents",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn rerank(&self, Parameters(query): Parameters<Query>) -> Result<Json<Reranked>, String> {
        result(self.order(query).await)
    }

    /// Pulls a model from the hub into the store and serves it from then on. Returns when it is there, which may take minutes.
    #[tool(annotations(
        title = "Pull a model",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = true
    ))]
    async fn pull_model(&self, Parameters(which): Parameters<OneModel>) -> Result<Json<ServedReport>, String> {
        self.change(move |app| model_changes::pull_model(app, &which.model, &mut |_| ()).map(drop)).await
    }

    /// Serves a model that is in the store; it comes into memory with its first call.
    #[tool(annotations(
        title = "Serve a model of the store",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn load_model(&self, Parameters(which): Parameters<OneModel>) -> Result<Json<ServedReport>, String> {
        self.change(move |app| model_changes::load_model(app, &which.model).map(drop)).await
    }

    /// Takes a model out of memory and does not serve it any more; its files stay. Calls that it has taken are answered first.
    #[tool(annotations(
        title = "Serve a model no more",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn unload_model(&self, Parameters(which): Parameters<OneModel>) -> Result<Json<ServedReport>, String> {
        self.change(move |app| model_changes::unload_model(app, &which.model).map(drop)).await
    }

    /// Does not serve a model any more and deletes its files from the store.
    #[tool(annotations(
        title = "Delete a model",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn delete_model(&self, Parameters(which): Parameters<OneModel>) -> Result<Json<ServedReport>, String> {
        self.change(move |app| model_changes::delete_model(app, &which.model).map(drop)).await
    }

    /// Lets another name mean a model; without a model, the name means nothing any more.
    #[tool(annotations(
        title = "Name a model",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn alias_model(&self, Parameters(named): Parameters<Alias>) -> Result<Json<ServedReport>, String> {
        self.change(move |app| model_changes::set_alias(app, &named.alias, named.model.as_deref())).await
    }

    /// Lists the models: what each does, how long its texts may be, and where it is now.
    #[tool(annotations(
        title = "List models",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_models(&self) -> Result<Json<ModelList>, String> {
        let models = self.app.models().iter().zip(self.app.report().models).map(|((_, model), reported)| ListedModel {
            name: model.name.clone(),
            does: model.does.code(),
            max_tokens: model.max_tokens,
            outputs: model.outputs,
            location: reported.location,
        });
        Ok(Json(ModelList { models: models.collect() }))
    }
}

impl Tools {
    async fn change(
        &self,
        change: impl FnOnce(&App) -> Result<(), Problem> + Send + 'static,
    ) -> Result<Json<ServedReport>, String> {
        result(model_changes::change_models(&self.app, change).await.map(|()| ServedReport::of(&self.app)))
    }

    async fn embed(&self, request: Texts) -> Result<Embedded, Problem> {
        set_priority(request.priority.as_deref())?;
        let app = &self.app;
        let model = app.models().embedder(request.model.as_deref())?;
        app.models().get(model).check_dimensions(request.dimensions)?;
        check_numbers(request.texts.len() * request.dimensions.unwrap_or(app.models().get(model).outputs))?;
        let bytes = request.texts.iter().map(String::len).sum();
        let dimensions = request.dimensions;
        let read = app.read(bytes, move |app| {
            let how = Reading { model, param: "texts", prompt: request.prompt_name.as_deref(), truncate: None };
            let texts = request.texts.into_iter().map(Cow::Owned).collect();
            app.read_input(Input::Texts { texts, is_single: false }, how)
        });
        let computed = app.compute(read.await?).await?;
        // Every number is rewritten: not on a thread that serves connections.
        let bytes = computed.answer.values.len() * size_of::<f32>();
        let rewritten = app.engine().background(bytes, move || {
            let rows = computed.answer.rows();
            let rows = rows.map(|row| cut(row, dimensions).iter().map(|number| short(*number)).collect());
            (rows.collect(), computed)
        });
        let (embeddings, computed) = rewritten.await?;
        let answer = &computed.answer;
        Ok(Embedded {
            model: self.name(model),
            dimensions: dimensions.unwrap_or(answer.dimensions),
            embeddings,
            tokens: answer.tokens,
            truncated: computed.truncated(),
            device: device(&computed),
        })
    }

    async fn compare(&self, request: Sentences) -> Result<Compared, Problem> {
        set_priority(request.priority.as_deref())?;
        let model = self.app.models().embedder(request.model.as_deref())?;
        let (scores, computed) = self.score(model, "sentences", request.source_sentence, request.sentences).await?;
        let similarities = scores.into_iter().map(short).collect();
        Ok(Compared { model: self.name(model), similarities, device: device(&computed) })
    }

    async fn order(&self, request: Query) -> Result<Reranked, Problem> {
        set_priority(request.priority.as_deref())?;
        if request.top_n == Some(0) {
            return Err(Problem::invalid("top_n", "top_n is at least 1"));
        }
        let model = self.app.models().find(request.model.as_deref(), Does::Rank)?;
        let documents = request.documents.clone();
        let (scores, computed) = self.score(model, "documents", request.query, request.documents).await?;
        let best = ranked(&scores).into_iter().take(request.top_n.unwrap_or(usize::MAX));
        let results = best.map(|index| Ranked {
            index,
            relevance_score: short(scores[index]),
            document: documents[index].clone(),
        });
        Ok(Reranked { model: self.name(model), results: results.collect(), device: device(&computed) })
    }

    async fn score(
        &self,
        model: usize,
        param: &'static str,
        query: String,
        texts: Vec<String>,
    ) -> Result<(Vec<f32>, Computed), Problem> {
        let bytes = query.len() + texts.iter().map(String::len).sum::<usize>();
        let read = self.app.read(bytes, move |app| {
            let how = Reading { model, param, prompt: None, truncate: None };
            let texts = texts.into_iter().map(Cow::Owned).collect();
            app.read_ranking(Ranking { query: Cow::Owned(query), texts }, how)
        });
        self.app.rank(read.await?, false).await
    }

    fn name(&self, model: usize) -> String {
        self.app.models().get(model).name.clone()
    }
}

/// Bounds the numbers of an answer: the protocol writes each of them several times.
fn check_numbers(numbers: usize) -> Result<(), Problem> {
    const NUMBERS_MAX: usize = 1 << 17;
    if numbers <= NUMBERS_MAX {
        return Ok(());
    }
    let message = format!(
        "the vectors would have {numbers} numbers, and {NUMBERS_MAX} are allowed in a call: send fewer texts, or ask for \
         fewer dimensions"
    );
    Err(Problem::too_large("texts", message))
}

fn set_priority(word: Option<&str>) -> Result<(), Problem> {
    word.map_or(Ok(()), |word| RequestRecord::current().set_priority(word.parse()?))
}

fn device(computed: &Computed) -> String {
    computed.answer.device.to_string()
}

fn result<T>(done: Result<T, Problem>) -> Result<Json<T>, String> {
    done.map(Json).map_err(|problem| problem.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_blocked_other_calls() {
        assert!(check_numbers(128 * 1024).is_ok());
        assert!(check_numbers(2048 * 384).unwrap_err().message.contains("fewer texts"));
    }
}
