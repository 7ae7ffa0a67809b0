//! An evaluation as people read it.
//! Prints nothing itself.

use crate::{
    critics::{CriticReport, Report, Status},
    output::{aligned, safe},
};

/// A line a critic with its reasons below, then the precedents, and at last what was decided.
pub(super) fn table(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report.critics.iter().map(cells).collect();
    let lines = aligned(&rows);
    let mut text = String::new();
    for (line, critic) in lines.lines().zip(&report.critics) {
        text += &format!("{line}\n");
        critic.reasons.iter().chain(&critic.error).for_each(|reason| text += &format!("    {}\n", safe(reason)));
    }
    for precedent in &report.precedents {
        let cited = match precedent.cited_by.is_empty() {
            true => String::new(),
            false => format!(" (cited by {})", precedent.cited_by.join(", ")),
        };
        let id = precedent.id.as_str().map_or_else(|| precedent.id.to_string(), str::to_owned);
        text += &format!("case {}{cited}: {}\n", safe(&id), begins(&precedent.text));
    }
    if let Some(id) = &report.stored {
        text += &format!("stored as case {}\n", safe(id));
    }
    text + &whole(report)
}

fn cells(critic: &CriticReport) -> Vec<String> {
    let score = critic.score.map_or_else(|| "-".to_owned(), |score| format!("{score:.2}"));
    let told = match critic.status {
        Status::Judged if critic.is_veto => "veto",
        Status::Judged => "",
        missing => missing.word(),
    };
    let seconds = format!("{:.2} s", critic.latency_ms / 1e3);
    let place = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
    vec![critic.name.clone(), score, told.to_owned(), seconds, place(&critic.device), safe(&place(&critic.model))]
}

/// What was decided, and by whom.
fn whole(report: &Report) -> String {
    let aggregate = &report.aggregate;
    let mut parts = Vec::new();
    match aggregate.score {
        Some(score) => parts.push(format!("{score:.2} by {}", aggregate.formed_over.join(", "))),
        None => parts.push("no score".to_owned()),
    }
    if !aggregate.vetoed_by.is_empty() {
        parts.push(format!("vetoed by {}", aggregate.vetoed_by.join(", ")));
    }
    if !aggregate.missing.is_empty() {
        parts.push(format!("without {}", aggregate.missing.join(", ")));
    }
    format!("{}: {}\n", aggregate.decision.word(), parts.join("; "))
}

fn begins(text: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let words: Vec<&str> = text.split_whitespace().collect();
    safe(&words.join(" ").chars().take(SHOWN_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn people_read_who_said_what_and_what_follows() {
        let critic = |name: &str, more: serde_json::Value| {
            let mut all = json!({
                "name": name, "status": "judged", "score": 0.8, "reasons": [], "citations": [], "verdict": null, "error": null,
                "weight": 1.0, "veto_below": null, "is_veto": false, "latency_ms": 1234.5, "model": "tiny", "device": "cpu",
                "fallback": null, "prompt_tokens": 1, "cached_tokens": 0, "tokens": 2,
            });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let late = json!({"status": "late", "score": null, "error": "no verdict within 1 s", "device": null});
        let report = json!({
            "aggregate": {"decision": "rejected", "score": 0.5, "accept_from": 0.5, "formed_over": ["ethics", "safety"],
                "missing": ["fairness"], "vetoed_by": ["safety"]},
            "critics": [critic("ethics", json!({"reasons": ["It is kind.", "a\u{1b}b"]})), critic("fairness", late),
                critic("safety", json!({"score": 0.2, "is_veto": true}))],
            "precedents": [{"id": 7, "similarity": 0.9, "text": "An old\ntext", "evaluation": null, "cited_by": ["safety"]}],
            "stored": "a-b",
        });
        let shown = table(&serde_json::from_value(report).unwrap());
        expect![[r#"
            ethics    0.80        1.23 s  cpu  tiny
                It is kind.
                a\u{1b}b
            fairness  -     late  1.23 s  -    tiny
                no verdict within 1 s
            safety    0.20  veto  1.23 s  cpu  tiny
            case 7 (cited by safety): An old text
            stored as case a-b
            rejected: 0.50 by ethics, safety; vetoed by safety; without fairness
        "#]]
        .assert_eq(&shown);
    }
}
