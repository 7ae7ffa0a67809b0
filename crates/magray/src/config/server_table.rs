//! The settings of `magray serve`: the part of the table that is about the server.
//! Holds no values, like the rest of the table.

use super::{setting::Setting, value::Kind};

pub(super) const SERVER: [Setting; 32] = [
    Setting::trusted(
        "server.host",
        Kind::Text,
        "127.0.0.1",
        "The address that is listened on; `0.0.0.0`: all of them.",
    )
    .env(&["MAGRAY_HOST"])
    .flag("--host"),
    Setting::harmless("server.port", Kind::Whole { min: 0, max: 65_535 }, "7860", "The port; 0: any that is free.")
        .env(&["MAGRAY_PORT"])
        .flag("--port"),
    Setting::harmless(
        "server.models",
        Kind::Names,
        "",
        "The models to serve; the first is the default. `none`: the one of `model.name`.",
    )
    .env(&["MAGRAY_MODELS"])
    .unset_as("none"),
    Setting::harmless(
        "server.aliases",
        Kind::Names,
        "",
        "Other names of models, as `alias=model`, for clients with fixed model names.",
    )
    .flag("--alias")
    .unset_as("none"),
    Setting::trusted(
        "server.openai_token_file",
        Kind::Path,
        "",
        "A file of OpenAI's tokens (such as `cl100k_base.tiktoken`) that decodes token ids sent to `/v1/embeddings`, \
         for clients that tokenize for OpenAI's models. `none`: ids are the model's own.",
    )
    .unset_as("none"),
    Setting::trusted("server.api_keys", Kind::Names, "", "Keys of users.")
        .env(&["MAGRAY_API_KEYS"])
        .unset_as("none")
        .secret(),
    Setting::trusted("server.api_keys_file", Kind::Path, "", "A file of keys of users, one a line.")
        .flag("--api-keys-file")
        .unset_as("none"),
    Setting::trusted("server.admin_keys", Kind::Names, "", "Keys of administrators.")
        .env(&["MAGRAY_ADMIN_KEYS"])
        .unset_as("none")
        .secret(),
    Setting::trusted("server.admin_keys_file", Kind::Path, "", "A file of keys of administrators, one a line.")
        .flag("--admin-keys-file")
        .unset_as("none"),
    Setting::harmless(
        "server.requests_per_minute",
        Kind::Whole { min: 1, max: 1_000_000_000 },
        "",
        "Requests that each key may make in a minute, and without a key each address; a sixth of them may come at once.",
    )
    .unset_as("none"),
    Setting::harmless(
        "server.tokens_per_minute",
        Kind::Whole { min: 1, max: 1_000_000_000 },
        "",
        "Tokens, read and generated, that each key may use in a minute, and without a key each address; a minute's may be used \
         at once.",
    )
    .unset_as("none"),
    Setting::trusted(
        "server.high_priority_keys",
        Kind::Names,
        "",
        "Names of users' keys that may ask for a high priority, or `*` for all. Administrators' keys \
         always may, and where there are no keys of users everyone may.",
    )
    .unset_as("none"),
    Setting::trusted("server.tls_cert", Kind::Path, "", "The certificate chain (PEM): with it the server speaks TLS.")
        .flag("--tls-cert")
        .unset_as("none"),
    Setting::trusted("server.tls_key", Kind::Path, "", "The private key of the certificate (PEM).")
        .flag("--tls-key")
        .unset_as("none"),
    Setting::trusted(
        "server.cors_origins",
        Kind::Names,
        "",
        "Web origins whose pages may use the server, or `*` for all.",
    )
    .unset_as("none"),
    Setting::trusted(
        "server.allowed_hosts",
        Kind::Names,
        "",
        "Host names (`Host`) that the server accepts beside its own, such as that of a proxy: `embed.example.com`, \
         `*.example.com`, or `*` for any, which gives up the protection against DNS rebinding.",
    )
    .env(&["MAGRAY_ALLOWED_HOSTS"])
    .flag("--allowed-hosts"),
    Setting::harmless(
        "server.body_bytes_max",
        Kind::Whole { min: 1, max: 1 << 30 },
        "16777216",
        "Bytes of a request's body at most.",
    ),
    Setting::harmless(
        "server.held_bytes_max",
        Kind::Whole { min: 1 << 16, max: 1 << 40 },
        "134217728",
        "Memory for all requests and answers together, in bytes; more are refused.",
    ),
    Setting::harmless(
        "server.queue_wait_s",
        Kind::Number { min: 0.001 },
        "30",
        "Seconds that a request may be predicted to wait for others, by the speed of recent batches and its caller's \
         share; one that would wait longer is refused with 429.",
    )
    .env(&["MAGRAY_QUEUE_WAIT"])
    .flag("--queue-wait"),
    Setting::harmless(
        "server.text_cache",
        Kind::Whole { min: 0, max: 1 << 30 },
        "100000",
        "Texts whose vectors or scores are remembered, so that the same text is not computed twice; 0: none. 512 MiB at most.",
    )
    .env(&["MAGRAY_TEXT_CACHE"])
    .flag("--text-cache"),
    Setting::harmless("server.texts_max", Kind::Whole { min: 1, max: 65_536 }, "2048", "Texts of a request at most."),
    Setting::harmless(
        "server.text_bytes_max",
        Kind::Whole { min: 1, max: 1 << 30 },
        "1048576",
        "Bytes of a text at most.",
    ),
    Setting::harmless(
        "server.tokens_max",
        Kind::Whole { min: 1, max: 1 << 40 },
        "1048576",
        "Tokens of a request at most, as the model reads them.",
    ),
    Setting::harmless(
        "server.truncate",
        Kind::Switch,
        "true",
        "Cut texts that are longer than the model reads, where the request does not say; `false`: refuse them.",
    ),
    Setting::harmless("server.connections_max", Kind::Whole { min: 1, max: 1_000_000 }, "4096", "Connections at once."),
    Setting::harmless(
        "server.head_timeout_s",
        Kind::Whole { min: 1, max: 3_600 },
        "30",
        "Seconds in which a client must send the head of its next request; then the connection is closed.",
    ),
    Setting::harmless(
        "server.body_timeout_s",
        Kind::Whole { min: 1, max: 3_600 },
        "30",
        "Seconds in which a client must send a body, and in which it must read some of its answer; the whole answer \
         within this time plus a second for each 128 KiB.",
    ),
    Setting::harmless(
        "server.request_timeout_s",
        Kind::Whole { min: 1, max: 86_400 },
        "60",
        "Seconds in which a request is answered, or refused with 503.",
    ),
    Setting::harmless(
        "server.drain_delay_s",
        Kind::Whole { min: 0, max: 3_600 },
        "0",
        "Seconds that a server which is told to stop goes on as before, but for `/health`, which says 503, and connections, \
         which end with their next answer: the time in which load balancers send clients elsewhere.",
    )
    .env(&["MAGRAY_DRAIN_DELAY"]),
    Setting::harmless(
        "server.drain_timeout_s",
        Kind::Whole { min: 0, max: 86_400 },
        "30",
        "Seconds that running requests get to finish when the server stops.",
    ),
    Setting::harmless(
        "server.vllm_metrics",
        Kind::Switch,
        "false",
        "Show load in `/metrics` by the names of vLLM too (`vllm:num_requests_waiting`, ...), by which endpoint pickers of the \
         Gateway API choose a server.",
    ),
    Setting::trusted(
        "server.tracing.otlp_endpoint",
        Kind::Url,
        "",
        "The OpenTelemetry collector that gets a trace of each request (OTLP over HTTP, such as \
         `http://localhost:4318`). `none`: traces are off.",
    )
    .env(&["OTEL_EXPORTER_OTLP_ENDPOINT"])
    .unset_as("none"),
];
