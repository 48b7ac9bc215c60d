//! Who may stay connected: a bounded number of seats, a share of them for each address, and room made where
//! nothing is asked.
//!
//! A connection costs a descriptor and a task whether it asks for anything or not, and whoever opens many and
//! asks for nothing must not keep the others out. When all seats are taken, a newcomer gets the seat of a
//! connection on which no request runs: of the address that holds most seats, and of its connections one that
//! never asked for anything before one that did. Only where a request runs on every seat do newcomers wait.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// All seats of a server.
pub(super) struct Seats {
    most: usize,
    each: usize,
    book: Mutex<Book>,
    /// Told whenever a seat is given up, or a request on one ends.
    freed: Notify,
}

#[derive(Default)]
struct Book {
    /// Counts seats and the moments at which they fell idle.
    clock: u64,
    taken: BTreeMap<u64, Taken>,
}

struct Taken {
    peer: IpAddr,
    /// Requests that run: none or one, as HTTP/1 answers in turn.
    running: u32,
    /// Whether anything was ever asked.
    asked: bool,
    /// When nothing began to run: of two idle ones, the smaller is idle for longer.
    idle_since: u64,
    /// Whether it was told to leave: it counts no more.
    leaving: bool,
    leave: CancellationToken,
}

/// A newcomer's fate.
pub(super) enum Admission {
    /// It may stay.
    Seated(Seat),
    /// Its address has its share, and a request runs on every one.
    Crowded,
    /// A request runs on every seat.
    Full,
}

/// The right to stay connected. Dropping it gives the seat up.
pub(super) struct Seat {
    id: u64,
    seats: Arc<Seats>,
    leave: CancellationToken,
}

impl Seats {
    /// `most` seats, of which one address has at most `each`.
    pub(super) fn new(most: usize, each: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            each,
            book: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Seats a connection of `peer`, in the place of an idle one where that is needed.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Admission {
        let peer = neighbourhood(peer);
        let mut book = self.book();
        let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for seat in book.taken.values().filter(|seat| !seat.leaving) {
            *held.entry(seat.peer).or_default() += 1;
        }
        let own = held.get(&peer).copied().unwrap_or_default();
        let crowded = own >= self.each;
        if crowded || held.values().sum::<usize>() >= self.most {
            let idle = book
                .taken
                .values_mut()
                .filter(|seat| !seat.leaving && seat.running == 0 && (!crowded || seat.peer == peer));
            let of_most = |seat: &&mut Taken| {
                let holds = held.get(&seat.peer).copied().unwrap_or_default();
                (Reverse(holds), seat.asked, seat.idle_since)
            };
            match idle.min_by_key(of_most) {
                Some(seat) => {
                    seat.leaving = true;
                    seat.leave.cancel();
                }
                None if crowded => return Admission::Crowded,
                None => return Admission::Full,
            }
        }
        let (id, leave) = (book.tick(), CancellationToken::new());
        let taken = Taken {
            peer,
            running: 0,
            asked: false,
            idle_since: id,
            leaving: false,
            leave: leave.clone(),
        };
        book.taken.insert(id, taken);
        drop(book);
        Admission::Seated(Seat {
            id,
            seats: Arc::clone(self),
            leave,
        })
    }

    /// Waits until asking again may have another answer. Cancel-safe; what happened before the call counts.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl Seat {
    /// Waits until the connection has to make room. Cancel-safe.
    pub(super) async fn asked_to_leave(&self) {
        self.leave.cancelled().await;
    }

    /// Whether anything was ever asked on the connection.
    pub(super) fn was_used(&self) -> bool {
        let book = self.seats.book();
        book.taken.get(&self.id).is_some_and(|seat| seat.asked)
    }

    /// Whether a request runs.
    pub(super) fn is_busy(&self) -> bool {
        let book = self.seats.book();
        book.taken.get(&self.id).is_some_and(|seat| seat.running > 0)
    }

    /// Notes that a request runs, until what is returned is dropped.
    pub(super) fn running(&self) -> Running {
        if let Some(seat) = self.seats.book().taken.get_mut(&self.id) {
            seat.running += 1;
            seat.asked = true;
        }
        Running {
            id: self.id,
            seats: Arc::clone(&self.seats),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.book().taken.remove(&self.id);
        self.seats.freed.notify_one();
    }
}

/// A request that runs.
pub(super) struct Running {
    id: u64,
    seats: Arc<Seats>,
}

impl Running {
    /// Runs for as long as `body` is being sent.
    pub(super) fn until_sent(self, body: Body) -> Body {
        Body::new(Sent { body, _running: self })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut book = self.seats.book();
        let now = book.tick();
        if let Some(seat) = book.taken.get_mut(&self.id) {
            seat.running -= 1;
            seat.idle_since = now;
        }
        drop(book);
        self.seats.freed.notify_one();
    }
}

/// A body that is told of when it is gone.
struct Sent {
    body: Body,
    _running: Running,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whose share an address counts against: an IPv6 network hands out any number of addresses.
fn neighbourhood(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn seated(seats: &Arc<Seats>, peer: IpAddr) -> Seat {
        match seats.admit(peer) {
            Admission::Seated(seat) => seat,
            Admission::Crowded => panic!("crowded"),
            Admission::Full => panic!("full"),
        }
    }

    fn leaves(seat: &Seat) -> bool {
        seat.leave.is_cancelled()
    }

    #[test]
    fn who_holds_most_and_never_asked_makes_room_first() {
        let seats = Seats::new(4, 4);
        let used = seated(&seats, A);
        drop(used.running());
        let (silent, later, of_b) = (seated(&seats, A), seated(&seats, A), seated(&seats, B));
        let _fifth = seated(&seats, B);
        assert!(leaves(&silent) && !leaves(&later) && !leaves(&used) && !leaves(&of_b));
        let _sixth = seated(&seats, A);
        assert!(
            leaves(&later) && !leaves(&used),
            "A holds two again, of which one was used"
        );
    }

    #[test]
    fn a_running_request_is_never_cut_off_for_a_newcomer() {
        let seats = Seats::new(2, 2);
        let (one, two) = (seated(&seats, A), seated(&seats, B));
        let (first, _second) = (one.running(), two.running());
        assert!(matches!(seats.admit(B), Admission::Full));
        drop(first);
        let _third = seated(&seats, B);
        assert!(leaves(&one) && !leaves(&two));
    }

    #[test]
    fn an_address_has_its_share_and_no_more() {
        let seats = Seats::new(4, 2);
        let (one, two) = (seated(&seats, A), seated(&seats, A));
        let _running = one.running();
        let _three = seated(&seats, A);
        assert!(leaves(&two), "its own idle one makes room, with seats free");
        let seats = Seats::new(4, 1);
        let one = seated(&seats, A);
        let _running = one.running();
        assert!(matches!(seats.admit(A), Admission::Crowded));
        let _other = seated(&seats, B);
    }

    #[test]
    fn a_network_of_the_newer_kind_is_one_neighbour() {
        let at = |text: &str| neighbourhood(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2:3::4"), at("2001:db8:1:2:ffff::1"));
        assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
        assert_eq!(at("::ffff:192.0.2.1"), A);
    }
}
