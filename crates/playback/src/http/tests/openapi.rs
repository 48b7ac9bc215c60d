//! The published contract held against the running server, in both directions: whatever the server answers
//! stands in `docs/openapi.yaml`, and whatever stands there was answered.

mod answers;

use std::collections::BTreeSet;

use serde_json::Value;

use super::bed::{Bed, FILM, Reply};

const CONTRACT: &str = include_str!("../../../../../docs/openapi.yaml");
const SESSIONS: &str = "/ether/api/sessions";
const ROUTER: &str = include_str!("../../http.rs");

struct Contract {
    document: Value,
    answered: BTreeSet<(String, String, u16)>,
}

impl Contract {
    fn read() -> Self {
        Self {
            document: serde_yaml_ng::from_str(CONTRACT).unwrap(),
            answered: BTreeSet::new(),
        }
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(reference) => self.document.pointer(&reference[1..]).expect(reference),
            None => value,
        }
    }

    /// Every route, method and status that the contract promises.
    fn promised(&self) -> BTreeSet<(String, String, u16)> {
        let mut promised = BTreeSet::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                for status in operation["responses"].as_object().into_iter().flatten() {
                    promised.insert((path.clone(), method.to_uppercase(), status.0.parse().unwrap()));
                }
            }
        }
        promised
    }

    /// Holds one answer against the contract.
    fn hold(&mut self, route: &str, method: &str, status: u16, reply: &Reply) {
        assert_eq!(
            reply.status.as_u16(),
            status,
            "{method} {route}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        let operation = &self.document["paths"][route][method.to_lowercase()];
        let promised = &operation["responses"][status.to_string()];
        assert!(
            promised.is_object(),
            "{method} {route} answers {status}, which is not promised"
        );
        let promised = self.resolve(promised);
        for (name, _) in promised["headers"].as_object().into_iter().flatten() {
            assert!(
                reply.header(name).is_some(),
                "{method} {route} {status} has no {name}"
            );
        }
        if let Some(content) = promised["content"].as_object().filter(|_| method != "HEAD") {
            let sent = reply.header("content-type").unwrap_or_default();
            let media = content.get(sent);
            assert!(media.is_some(), "{method} {route} {status} sends {sent}");
            if let Some(schema) = media.and_then(|media| media.get("schema")) {
                self.fits(schema, &reply.json(), &format!("{method} {route} {status}"));
            }
        } else if method != "HEAD" {
            assert!(
                reply.body.is_empty(),
                "{method} {route} {status} has an unpromised body"
            );
        }
        self.answered
            .insert((route.to_owned(), method.to_owned(), status));
    }

    /// Checks `value` against a schema of the few words that the contract uses. A field that the schema does
    /// not know is an error: nothing is answered that is not written down.
    fn fits(&self, schema: &Value, value: &Value, at: &str) {
        let schema = self.resolve(schema);
        if let Some(all) = schema["allOf"].as_array() {
            let mut known = serde_json::Map::new();
            let mut required = Vec::new();
            for part in all.iter().map(|part| self.resolve(part)) {
                known.extend(part["properties"].as_object().cloned().unwrap_or_default());
                required.extend(part["required"].as_array().cloned().unwrap_or_default());
            }
            let merged = serde_json::json!({"type": "object", "properties": known, "required": required});
            return self.fits(&merged, value, at);
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => panic!("{at}: a schema without a type"),
        };
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let fitting = kinds.contains(&kind) || (kind == "integer" && kinds.contains(&"number"));
        assert!(fitting, "{at} is {kind} and should be {kinds:?}");
        if let Some(allowed) = schema["enum"].as_array() {
            assert!(allowed.contains(value), "{at} is {value}, which is not listed");
        }
        if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
            for (n, value) in values.iter().enumerate() {
                self.fits(items, value, &format!("{at}[{n}]"));
            }
        }
        let Some(fields) = value.as_object() else {
            return;
        };
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            assert!(fields.contains_key(name), "{at} has no {name}");
        }
        if let Some(properties) = schema["properties"].as_object() {
            for (name, value) in fields {
                let property = properties.get(name);
                let property = property.unwrap_or_else(|| panic!("{at}.{name} is not written down"));
                self.fits(property, value, &format!("{at}.{name}"));
            }
        }
    }
}

#[test]
fn every_route_of_the_router_is_in_the_contract_and_the_other_way_round() {
    let contract = Contract::read();
    let written: BTreeSet<&str> = contract.document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let routed: BTreeSet<String> = ROUTER
        .split(".route(")
        .skip(1)
        .filter_map(|rest| rest.split('"').nth(1))
        .map(|path| path.replace("{*", "{"))
        .collect();
    assert_eq!(written, routed.iter().map(String::as_str).collect());
}

/// The fields of `schema`, those of objects in it with a path, and what each may hold.
fn bounds(contract: &Contract, schema: &Value, path: &str) -> Vec<(String, Value)> {
    let schema = contract.resolve(schema);
    let mut found = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{path}{name}");
        let field = contract.resolve(field);
        if field["type"] == "object" {
            found.extend(bounds(contract, field, &format!("{at}.")));
        } else {
            found.push((at, field.clone()));
        }
    }
    found
}

#[tokio::test]
async fn every_bound_that_the_contract_states_is_the_servers() {
    let bed = Bed::new().await;
    let contract = Contract::read();
    let wish = &contract.document["components"]["schemas"]["Wish"];
    let (mut held, ask) = (0, async |at: &str, value: Value| {
        let mut body = match at.split_once('.') {
            Some((outer, inner)) => serde_json::json!({outer: {inner: value}}),
            None => serde_json::json!({at: value}),
        };
        body["item"] = FILM.into();
        let reply = bed.owner("POST", SESSIONS, &body.to_string()).await;
        let session = reply.json()["id"].as_str().map(|id| format!("{SESSIONS}/{id}"));
        if let Some(session) = session {
            bed.owner("DELETE", &session, "").await;
        }
        (reply.status.as_u16(), reply.json()["field"].clone())
    });
    for (at, field) in bounds(&contract, wish, "") {
        let mut good: Vec<Value> = field["enum"].as_array().cloned().unwrap_or_default();
        let mut bad = match field["enum"].is_array() {
            true => vec![Value::from("nonsense"), Value::from("")],
            false => Vec::new(),
        };
        for (bound, step) in [("minimum", -1), ("maximum", 1)] {
            if let Some(bound) = field[bound].as_i64() {
                good.push(bound.into());
                bad.push((bound + step).into());
            }
        }
        if let Some(most) = field["maxItems"].as_u64() {
            let entry = "x".repeat(usize::try_from(field["items"]["maxLength"].as_u64().unwrap()).unwrap());
            let most = usize::try_from(most).unwrap();
            good.push(vec![entry.clone(); most].into());
            bad.push(vec![entry.clone(); most + 1].into());
            bad.push(vec![format!("{entry}x")].into());
        }
        if field["type"] != "string" {
            bad.push("text".into());
        }
        bad.push(serde_json::json!({}));
        for value in good.into_iter().filter(|_| at != "item") {
            let (status, named) = ask(&at, value.clone()).await;
            assert_ne!(
                (status, named),
                (400, Value::from(at.as_str())),
                "{at} may be {value}"
            );
            held += 1;
        }
        for value in bad.into_iter().filter(|_| at != "item") {
            let (status, named) = ask(&at, value.clone()).await;
            let named = named.as_str().unwrap_or_default();
            assert!(status == 400 && named.starts_with(&at), "{at} may not be {value}");
            held += 1;
        }
    }
    assert!(held > 60, "{held} bounds were held");
}
