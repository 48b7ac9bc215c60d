//! What every request passes before it is looked at, and what every answer carries.
//!
//! The Host allow-list defeats DNS rebinding; the fetch-metadata check and the absence of cookies defeat
//! requests forged by other sites; the headers keep an answer from being read or run where it should not be.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL,
    CONTENT_SECURITY_POLICY, HOST, HeaderName, ORIGIN, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use super::App;
use super::error::ApiError;

const POLICY: &str = "default-src 'self'; media-src 'self' blob:; img-src 'self' blob: data:; \
                      worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const EXPOSED: &str = "Content-Range, Content-Length, Accept-Ranges, ETag, Retry-After, Location";
const REQUEST_HEADERS: &str =
    "Authorization, Content-Type, Range, If-Range, If-Match, If-None-Match, Idempotency-Key";
const REQUEST_METHODS: &str = "GET, HEAD, POST, PUT, DELETE";

/// The two ends of a connection, put into every request by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// The client's address.
    pub peer: SocketAddr,
}

/// Names that this server answers to.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    /// Answers to `names` (host names or addresses, without a port), to `localhost`, and to whichever
    /// address a client connected to.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().map(|name| name.trim().to_ascii_lowercase());
        Self {
            names: names.filter(|name| !name.is_empty()).collect(),
        }
    }

    /// Whether `authority`, a host with or without a port, is this server. Ports are not compared: a
    /// forwarded port is a different one, and rebinding needs a name.
    fn answers_to(&self, authority: &str, local: Option<IpAddr>) -> bool {
        let Some(host) = host_of(authority) else {
            return false;
        };
        let host = host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        if host == "localhost" || self.names.iter().any(|name| name == host) {
            return true;
        }
        let literal = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        let connected = local.map(|ip| ip.to_canonical());
        literal
            .parse::<IpAddr>()
            .is_ok_and(|ip| Some(ip.to_canonical()) == connected)
            || self.names.iter().any(|name| name == literal)
    }
}

/// The host of an authority, brackets of an IPv6 address kept; `None` where it is none.
fn host_of(authority: &str) -> Option<&str> {
    if authority.contains('@') {
        return None;
    }
    let end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let port_ok = port.is_empty() || port.strip_prefix(':')?.bytes().all(|b| b.is_ascii_digit());
    (port_ok && !host.is_empty()).then_some(host)
}

/// Other sites whose pages may call this server.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<String>);

impl Origins {
    /// Exactly these, each as `scheme://host[:port]`.
    pub fn new(origins: impl IntoIterator<Item = String>) -> Self {
        Self(origins.into_iter().collect())
    }

    fn allow(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let listed = self.0.iter().any(|listed| listed.as_bytes() == origin.as_bytes());
        listed.then(|| origin.clone())
    }
}

/// The outermost layer of the router.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = app.clock.monotonic();
    let allowed = app.origins.allow(request.headers());
    let line = Line::of(&request);
    let mut response = match admit(&app, &request, allowed.is_some()) {
        Err(refused) => refused.into_response(),
        Ok(()) if preflight(&request, allowed.as_ref()) => preflight_answer(),
        Ok(()) => next.run(request).await,
    };
    finish(response.headers_mut(), &app.origins, allowed);
    line.log(response.status(), app.clock.monotonic().saturating_since(began));
    response
}

fn admit(app: &App, request: &Request, origin_allowed: bool) -> Result<(), ApiError> {
    let local = request.extensions().get::<Ends>().map(|ends| ends.local.ip());
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    };
    let Some(host) = host else {
        return Err(ApiError::no_host());
    };
    // An absolute address takes the place of the Host header; neither may be foreign.
    let named = request.uri().authority().map(|authority| authority.as_str());
    if !app.hosts.answers_to(host, local) || !named.is_none_or(|named| app.hosts.answers_to(named, local)) {
        return Err(ApiError::foreign_host(named.unwrap_or(host)));
    }
    if !decent(request.uri()) {
        return Err(ApiError::no_route());
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes && !origin_allowed && !from_here(request.headers(), host) {
        return Err(ApiError::cross_site());
    }
    Ok(())
}

/// Whether a request that changes something comes from this server's own page or from no page at all.
///
/// Browsers say so themselves, but only to servers that they hold to be trustworthy: one on a plain address in
/// the house hears nothing but the page's origin, which must then be the very place that was asked.
fn from_here(headers: &HeaderMap, host: &str) -> bool {
    match headers.get(FETCH_SITE).map(HeaderValue::as_bytes) {
        Some(b"same-origin" | b"none") => true,
        Some(b"cross-site" | b"same-site") => false,
        _ => headers.get_all(ORIGIN).iter().all(|origin| {
            let origin = origin.to_str().ok();
            origin.is_some_and(|origin| is_origin_of(origin, host))
        }),
    }
}

/// Whether `origin` is that of a page that `host` served.
fn is_origin_of(origin: &str, host: &str) -> bool {
    let (authority, usual) = match origin.split_once("://") {
        Some(("http", authority)) => (authority, ":80"),
        Some(("https", authority)) => (authority, ":443"),
        _ => return false,
    };
    // A port that goes without saying is said by some and not by others.
    let bare = |text: &str| text.strip_suffix(usual).unwrap_or(text).to_ascii_lowercase();
    bare(authority) == bare(host)
}

/// Whether a path means what it says: nothing in it is hidden behind an escape or walks up a tree.
fn decent(uri: &Uri) -> bool {
    let path = uri.path();
    path.starts_with('/')
        && path[1..].split('/').enumerate().all(|(n, segment)| {
            let Ok(plain) = percent_decode_str(segment).decode_utf8() else {
                return false;
            };
            let last = path[1..].split('/').count() == n + 1;
            (last || !segment.is_empty()) && plain != "." && plain != ".." && !plain.contains(['/', '\0'])
        })
}

fn preflight(request: &Request, allowed: Option<&HeaderValue>) -> bool {
    request.method() == Method::OPTIONS
        && allowed.is_some()
        && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight_answer() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(REQUEST_METHODS),
    );
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(REQUEST_HEADERS),
    );
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

fn finish(headers: &mut HeaderMap, origins: &Origins, allowed: Option<HeaderValue>) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    if !origins.0.is_empty() {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
    let policy = if allowed.is_some() {
        "cross-origin"
    } else {
        "same-origin"
    };
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static(policy));
    if let Some(origin) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}

/// What is logged of a request: the route's template and a hash of the session, never an address, a query or
/// a header.
struct Line {
    method: Method,
    route: String,
    session: Option<String>,
}

impl Line {
    fn of(request: &Request) -> Self {
        let route = request
            .extensions()
            .get::<MatchedPath>()
            .map(|path| path.as_str().to_owned());
        let path = request.uri().path();
        let session = ["/sessions/media/", "/ether/api/sessions/"]
            .iter()
            .find_map(|prefix| path.strip_prefix(prefix)?.split('/').next())
            .filter(|id| !id.is_empty());
        Self {
            method: request.method().clone(),
            route: route.unwrap_or_else(|| "(none)".to_owned()),
            session: session.map(session_hash),
        }
    }

    fn log(&self, status: StatusCode, took: std::time::Duration) {
        let Self {
            method,
            route,
            session,
        } = self;
        let (status, millis) = (
            status.as_u16(),
            u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        );
        let session = session.as_deref().unwrap_or("-");
        if status == StatusCode::SERVICE_UNAVAILABLE.as_u16() {
            // Not now is an ordinary answer: its reason is on the session.
            tracing::info!(%method, %route, session, status, millis, "answered");
        } else if status >= 500 {
            tracing::warn!(%method, %route, session, status, millis, "answered");
        } else {
            tracing::debug!(%method, %route, session, status, millis, "answered");
        }
    }
}

/// A session as logs name it: enough to follow one, nothing to use it by.
fn session_hash(id: &str) -> String {
    Sha256::digest(id.as_bytes())
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_server_answers_to_its_names_its_address_and_nothing_else() {
        let hosts = Hosts::new(["Films.example".to_owned(), "192.0.2.7".to_owned()]);
        let local = Some("127.0.0.1".parse().unwrap());
        for own in [
            "localhost",
            "LOCALHOST:32400",
            "127.0.0.1:32400",
            "127.0.0.1",
            "films.example.:80",
            "192.0.2.7",
        ] {
            assert!(hosts.answers_to(own, local), "{own}");
        }
        for foreign in [
            "evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.2",
            "localhost.evil.example",
            "",
            ":80",
            "user@localhost",
            "localhost:80x",
            "[::1",
        ] {
            assert!(!hosts.answers_to(foreign, local), "{foreign}");
        }
        assert!(hosts.answers_to("[::1]:9", Some("::1".parse().unwrap())));
        assert!(hosts.answers_to("192.0.2.9", Some("::ffff:192.0.2.9".parse().unwrap())));
        assert!(!hosts.answers_to("192.0.2.9", None));
    }

    #[test]
    fn an_origin_is_here_only_where_scheme_host_and_port_are() {
        for (origin, host) in [
            ("http://192.168.1.7:32400", "192.168.1.7:32400"),
            ("http://films.example", "films.example:80"),
            ("https://Films.example:443", "films.example"),
            ("http://[::1]:9", "[::1]:9"),
        ] {
            assert!(is_origin_of(origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("http://192.168.1.7:3000", "192.168.1.7:32400"),
            ("http://films.example.evil", "films.example"),
            ("http://films.example:443", "films.example"),
            ("null", "films.example"),
            ("file://films.example", "films.example"),
            ("", ""),
        ] {
            assert!(!is_origin_of(origin, host), "{origin} {host}");
        }
    }

    #[test]
    fn paths_that_hide_something_are_nowhere() {
        for good in [
            "/",
            "/assets/app.js",
            "/library/parts/a/b/Caf%C3%A9%20%231.mkv",
            "/a/..b",
        ] {
            assert!(decent(&good.parse().unwrap()), "{good}");
        }
        for bad in [
            "/a/../b",
            "/a/%2e%2E/b",
            "/a%2fb",
            "/a%00",
            "//a",
            "/a//b",
            "/.",
            "/%ff",
        ] {
            assert!(!decent(&bad.parse().unwrap()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_host_is_answered_by_accident(text in "[ -~]{0,40}") {
            let hosts = Hosts::default();
            if hosts.answers_to(&text, None) {
                prop_assert!(text.to_ascii_lowercase().starts_with("localhost"));
            }
        }
    }
}
