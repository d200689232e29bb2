//! Whoever has YAML for the published kinds can apply it here: our schemas take all that theirs take.
//!
//! ```text
//! crd-facts.tsv (theirs) --+
//!                          +--> complaints --minus--> differences.toml (each with its reason) --> none, and none unused
//! definitions   (ours)   --+
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

/// What a published definition says about a kind.
struct Kind<'a> {
    version: &'a str,
    scope: &'a str,
    plural: &'a str,
    singular: &'a str,
    short_names: Vec<&'a str>,
    subresources: Vec<&'a str>,
    columns: Vec<&'a str>,
}

/// What a published schema says about one field.
struct Field<'a> {
    path: &'a str,
    kind: &'a str,
    required: bool,
    constraints: Constraints,
}

type Constraints = BTreeMap<String, Value>;

/// A way in which ours takes less than theirs.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Complaint {
    kind: String,
    path: String,
    what: String,
    detail: String,
}

/// A complaint that is meant, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    kind: String,
    path: String,
    what: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    difference: Vec<Difference>,
}

const FACTS: &str = include_str!("data/crd-facts.tsv");
const DIFFERENCES: &str = include_str!("data/differences.toml");

/// The published facts: the first block has a line per kind, the second one per field.
fn facts() -> BTreeMap<&'static str, (Kind<'static>, Vec<Field<'static>>)> {
    let mut kinds = BTreeMap::new();
    for line in FACTS.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        match cells.as_slice() {
            [kind, version, scope, plural, singular, short, _, _, subresources, columns] => {
                let list = |text: &'static str, by| text.split(by).filter(|item| !item.is_empty()).collect();
                let facts = Kind {
                    version,
                    scope,
                    plural,
                    singular,
                    short_names: list(short, ","),
                    subresources: list(subresources, ","),
                    columns: list(columns, "; "),
                };
                kinds.insert(*kind, (facts, Vec::new()));
            }
            [owner, _, path, kind, required, constraints] => {
                let required = *required == "required";
                let field = Field { path, kind, required, constraints: parse_constraints(constraints) };
                kinds.get_mut(owner).expect("the kinds stand before their fields").1.push(field);
            }
            other => unreachable!("a line has 10 cells or 6, not {}: {line}", other.len()),
        }
    }
    kinds
}

/// `minItems=1 enum=["a","b"]`, or `map of string`.
fn parse_constraints(text: &str) -> Constraints {
    if let Some(of) = text.strip_prefix("map of ") {
        return BTreeMap::from([("map of".to_owned(), json!(of))]);
    }
    // Theirs has no effect: a list has no properties that it could require.
    let text = text.split(" required(misplaced").next().expect("split yields at least one part");
    let pair = |token: &str| {
        let (key, value) = token.split_once('=').expect("key=value");
        (key.to_owned(), serde_json::from_str(value).expect("the value is JSON"))
    };
    text.split(' ').filter(|token| !token.is_empty()).map(pair).collect()
}

/// Every way in which `ours`, a definition as JSON, takes less than theirs.
fn complaints(name: &str, kind: &Kind<'_>, fields: &[Field<'_>], ours: &Value) -> Vec<Complaint> {
    let mut all = Vec::new();
    let mut complain = |path: &str, what: &str, detail: String| {
        all.push(Complaint { kind: name.into(), path: path.into(), what: what.into(), detail });
    };
    names(kind, ours, &mut complain);
    let version = ours["spec"]["versions"].as_array().into_iter().flatten().find(|v| v["name"] == kind.version);
    let Some(version) = version else {
        complain("", "version", format!("{} is missing", kind.version));
        return all;
    };
    if version["served"] != true || version["storage"] != true {
        complain("", "version", format!("{} isn't both served and stored", kind.version));
    }
    for subresource in &kind.subresources {
        if !version["subresources"][subresource].is_object() {
            complain("", "subresource", format!("{subresource} is missing"));
        }
    }
    columns(kind, version, &mut complain);
    let root = &version["schema"]["openAPIV3Schema"];
    let known: BTreeSet<&str> = fields.iter().map(|field| field.path).collect();
    for field in fields {
        match at(root, field.path) {
            Some(schema) => one_field(field, schema, &known, fields, &mut complain),
            None => complain(field.path, "missing", "the field isn't in ours".into()),
        }
    }
    all
}

fn names(kind: &Kind<'_>, ours: &Value, complain: &mut impl FnMut(&str, &str, String)) {
    let spec = &ours["spec"];
    let texts = [
        ("scope", &spec["scope"], kind.scope),
        ("plural", &spec["names"]["plural"], kind.plural),
        ("singular", &spec["names"]["singular"], kind.singular),
        ("group", &spec["group"], "crd.antrea.io"),
    ];
    for (what, ours, theirs) in texts.into_iter().filter(|(_, ours, theirs)| *ours != theirs) {
        complain("", what, format!("{ours} is not {theirs}"));
    }
    for short in &kind.short_names {
        if !spec["names"]["shortNames"].as_array().is_some_and(|all| all.contains(&json!(short))) {
            complain("", "shortName", format!("{short} is missing"));
        }
    }
}

/// `Name=.json.path (priority 1) type` for each of theirs must be among ours.
fn columns(kind: &Kind<'_>, version: &Value, complain: &mut impl FnMut(&str, &str, String)) {
    let column = |column: &Value| {
        let priority = column["priority"].as_i64().filter(|p| *p != 0).map(|p| format!(" (priority {p})"));
        let text = |key: &str| column[key].as_str().expect("text").to_owned();
        format!("{}={}{} {}", text("name"), text("jsonPath"), priority.unwrap_or_default(), text("type"))
    };
    let ours: Vec<String> = version["additionalPrinterColumns"].as_array().into_iter().flatten().map(column).collect();
    for theirs in kind.columns.iter().filter(|theirs| !ours.iter().any(|ours| ours == *theirs)) {
        complain("", "column", format!("{theirs} is missing"));
    }
}

/// The schema at `.spec.interfaces[].ips`; at `.`, the root.
fn at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').filter(|step| !step.is_empty()).try_fold(root, |schema, step| {
        let name = step.trim_end_matches("[]");
        let property = schema["properties"].get(name)?;
        if step.ends_with("[]") { property.get("items") } else { Some(property) }
    })
}

fn one_field(
    field: &Field<'_>,
    ours: &Value,
    known: &BTreeSet<&str>,
    fields: &[Field<'_>],
    complain: &mut impl FnMut(&str, &str, String),
) {
    let kind = if field.kind == "-" { Value::Null } else { json!(field.kind) };
    if ours["type"] != kind {
        complain(field.path, "type", format!("{} is not {kind}", ours["type"]));
    }
    for name in ours["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let path = if field.path == "." { format!(".{name}") } else { format!("{}.{name}", field.path) };
        let theirs = fields.iter().find(|other| other.path == path);
        if !theirs.is_some_and(|theirs| theirs.required) {
            let new = if known.contains(path.as_str()) { "" } else { "new and " };
            complain(&path, "required", format!("is {new}required in ours only"));
        }
    }
    for (what, detail) in tighter(&field.constraints, ours) {
        complain(field.path, &what, detail);
    }
}

/// Each constraint of ours that refuses something theirs takes.
fn tighter(theirs: &Constraints, ours: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    for what in ["minItems", "minLength", "minimum", "minProperties"] {
        if let Some(least) = number(ours.get(what))
            && number(theirs.get(what)).is_none_or(|theirs| least > theirs)
        {
            all.push((what.to_owned(), format!("{least} is more than theirs")));
        }
    }
    for what in ["maxItems", "maxLength", "maximum", "maxProperties"] {
        if let Some(most) = number(ours.get(what))
            && number(theirs.get(what)).is_none_or(|theirs| most < theirs)
        {
            all.push((what.to_owned(), format!("{most} is less than theirs")));
        }
    }
    for what in ["pattern", "oneOf", "anyOf", "allOf", "not", "x-kubernetes-list-type"] {
        if let Some(mine) = ours.get(what)
            && theirs.get(what) != Some(mine)
        {
            all.push((what.to_owned(), format!("{mine} is not theirs")));
        }
    }
    // The format of a number says how it is held, and theirs are held in no more.
    let numeric = ours["type"] == "integer" || ours["type"] == "number";
    if let Some(format) = ours.get("format")
        && !numeric
        && theirs.get("format") != Some(format)
    {
        all.push(("format".to_owned(), format!("{format} is not theirs")));
    }
    if let Some(values) = ours.get("enum").and_then(Value::as_array) {
        let all_of_theirs =
            theirs.get("enum").and_then(Value::as_array).is_some_and(|t| t.iter().all(|v| values.contains(v)));
        if !all_of_theirs {
            all.push(("enum".to_owned(), format!("{values:?} is less than theirs")));
        }
    }
    if theirs.get("x-kubernetes-int-or-string").is_some()
        && ours.get("x-kubernetes-int-or-string") != Some(&json!(true))
    {
        all.push(("x-kubernetes-int-or-string".to_owned(), "only theirs takes both".to_owned()));
    }
    if let Some(of) = theirs.get("map of")
        && ours["additionalProperties"]["type"] != *of
    {
        all.push(("map of".to_owned(), format!("{} is not {of}", ours["additionalProperties"])));
    }
    for rule in ours["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let message = rule["message"].as_str().unwrap_or_default();
        all.push((format!("rule: {message}"), "is ours only".to_owned()));
    }
    all
}

fn ours() -> BTreeMap<String, Value> {
    let json = |definition| serde_json::to_value(definition).expect("a definition is JSON");
    let all = crds::definitions::all().into_iter().map(json);
    let by_kind = all.map(|d| (d["spec"]["names"]["kind"].as_str().expect("a kind").to_owned(), d));
    by_kind.filter(|(_, d)| d["spec"]["group"] == "crd.antrea.io").collect()
}

#[test]
fn what_the_published_schemas_take_ours_take_too_except_for_the_named_differences() {
    let facts = facts();
    let Differences { difference: allowed } = toml::from_str(DIFFERENCES).expect("differences.toml");
    let allows = |c: &Complaint, d: &Difference| (&c.kind, &c.path, &c.what) == (&d.kind, &d.path, &d.what);
    let mut found = Vec::new();
    let (mut fields_seen, mut constraints_seen) = (0, 0);
    for (name, definition) in ours() {
        let (kind, fields) = facts.get(name.as_str()).unwrap_or_else(|| panic!("no facts about {name}"));
        let constraints: usize = fields.iter().map(|field| field.constraints.len()).sum();
        println!("{name}: {} fields, {constraints} constraints, {} columns", fields.len(), kind.columns.len());
        fields_seen += fields.len();
        constraints_seen += constraints;
        found.extend(complaints(&name, kind, fields, &definition));
    }
    println!("{fields_seen} fields and {constraints_seen} constraints compared, {} named differences", allowed.len());
    assert!(fields_seen > 200, "the facts are there");

    let unnamed: Vec<&Complaint> = found.iter().filter(|c| !allowed.iter().any(|d| allows(c, d))).collect();
    assert!(unnamed.is_empty(), "tighter than published, and not in differences.toml: {unnamed:#?}");
    for d in &allowed {
        let Difference { kind, path, what, reason } = d;
        assert!(!reason.is_empty(), "{kind} {path} {what}: a difference needs a reason");
        assert!(found.iter().any(|c| allows(c, d)), "{kind} {path} {what} is no difference any more: take it out");
    }
}

#[test]
fn a_definition_that_takes_less_is_complained_about() {
    let facts = facts();
    let (kind, fields) = &facts["NetworkPolicy"];
    let whole = ours().remove("NetworkPolicy").expect("the kind");
    let before = complaints("NetworkPolicy", kind, fields, &whole);
    let spoil: [(&str, &str, Value, &str); 12] = [
        ("/spec/names/plural", "", json!("policies"), "plural"),
        ("/spec/names/shortNames/1", "", json!("x"), "shortName"),
        ("/spec/scope", "", json!("Cluster"), "scope"),
        ("/spec/versions/0/name", "", json!("v2"), "version"),
        ("/spec/versions/0/subresources/status", "", Value::Null, "subresource"),
        ("/spec/versions/0/additionalPrinterColumns/1/jsonPath", "", json!(".spec.x"), "column"),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase",
            ".status.phase",
            Value::Null,
            "type",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions/items",
            ".status.conditions[].type",
            json!({}),
            "missing",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/required",
            ".spec.tier",
            json!(["priority", "tier"]),
            "required",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/priority/maximum",
            ".spec.priority",
            json!(100),
            "maximum",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/ingress/items/properties/action/enum",
            ".spec.ingress[].action",
            json!(["Allow", "Drop", "Reject"]),
            "enum",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/ingress/items/properties/from/items/properties/podSelector/properties/matchLabels/additionalProperties",
            ".spec.ingress[].from[].podSelector.matchLabels",
            json!({"type": "integer"}),
            "map of",
        ),
    ];
    for (pointer, path, value, what) in spoil {
        let mut spoiled = whole.clone();
        *spoiled.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is there")) = value;
        let after = complaints("NetworkPolicy", kind, fields, &spoiled);
        let new: Vec<&Complaint> = after.iter().filter(|c| !before.contains(c)).collect();
        assert!(new.iter().any(|c| c.path == path && c.what == what), "{pointer}: {new:?}");
    }
}

#[test]
fn a_constraint_is_tighter_only_where_it_refuses_more() {
    let theirs = parse_constraints(r#"minItems=1 maxItems=4 enum=["a","b"] pattern="^a$""#);
    let same = json!({"type": "array", "minItems": 1, "maxItems": 4, "enum": ["b", "a", "c"], "pattern": "^a$"});
    assert_eq!(tighter(&theirs, &same), []);
    let looser = json!({"type": "array", "minItems": 0, "maxItems": 5});
    assert_eq!(tighter(&theirs, &looser), []);
    let less = json!({"minItems": 2, "maxItems": 3, "enum": ["a"], "pattern": "^b$", "minLength": 1, "format": "ipv4"});
    let what: Vec<String> = tighter(&theirs, &less).into_iter().map(|(what, _)| what).collect();
    assert_eq!(what, ["minItems", "minLength", "maxItems", "pattern", "format", "enum"]);
}
