use trunkline::{Bytes, Status};
/// Keys and values.
pub trait Kv: 'static {
    /// The value of a key.
    fn get(
        &self,
        key: String,
    ) -> impl ::core::future::Future<Output = Result<Option<Bytes>, Status>>;
    /// Sets a value.
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<Output = Result<(), Status>>;
    /// How many keys there are.
    fn count(&self) -> impl ::core::future::Future<Output = u64>;
    /// The key will not be needed soon.
    fn forget(
        &self,
        r#type: u8,
        key: String,
    ) -> impl ::core::future::Future<Output = ()>;
}
mod __kv_names {
    pub(super) static SERVICE: ::trunkline::stub::ServiceName = ::trunkline::stub::ServiceName {
        name: "golden.Kv",
        version: 2u32,
        hash: 2274913251127523067u64,
    };
    pub(super) static GET: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "get",
        hash: 16767883100022309234u64,
        one_way: false,
    };
    pub(super) static PUT: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "put",
        hash: 71320326203561452u64,
        one_way: false,
    };
    pub(super) static COUNT: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "count",
        hash: 14109536049692703384u64,
        one_way: false,
    };
    pub(super) static FORGET: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "forget",
        hash: 3095591332080242272u64,
        one_way: true,
    };
}
const _: () = ::trunkline::stub::is_bytes::<Bytes>();
const _: () = ::trunkline::stub::is_bytes::<Bytes>();
const _: () = ::trunkline::stub::is_status::<Status>();
const _: () = ::trunkline::stub::is_status::<Status>();
/// A server of [`Kv`], to pass to `NodeBuilder::serve`.
#[derive(Debug)]
pub struct KvServer(::trunkline::stub::Service);
impl KvServer {
    /// A server with one handler per poller. `make` runs on each poller's thread, so a handler
    /// need not be `Send`.
    #[must_use]
    pub fn new<T: Kv>(
        make: impl Fn() -> T + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self {
        Self::with_context(move |_| make())
    }
    /// Like `new`; `make` also receives the poller's context, with which handlers create local clients.
    #[must_use]
    pub fn with_context<T: Kv>(
        make: impl Fn(
            &::trunkline::PollerContext,
        ) -> T + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self {
        Self(
            ::trunkline::stub::Service::new(
                &__kv_names::SERVICE,
                move |context, methods| {
                    let handler = ::std::rc::Rc::new(make(context));
                    methods
                        .add(
                            &__kv_names::GET,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (key,): (String,) = __request.arguments(&["key"])?;
                                        let __replier = __request.replier();
                                        let __value = Kv::get(&*__handler, key)
                                            .await
                                            .map_err(|__error| ::trunkline::stub::HandlerError::into_failure(
                                                __error,
                                                &__replier,
                                            ))?;
                                        __replier.optional_bytes(__value)
                                    }
                                }
                            },
                        );
                    methods
                        .add(
                            &__kv_names::PUT,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (key,): (String,) = __request.arguments(&["key"])?;
                                        let __replier = __request.replier();
                                        let value = __request.into_body();
                                        let __value = Kv::put(&*__handler, key, value)
                                            .await
                                            .map_err(|__error| ::trunkline::stub::HandlerError::into_failure(
                                                __error,
                                                &__replier,
                                            ))?;
                                        __replier.value(&__value)
                                    }
                                }
                            },
                        );
                    methods
                        .add(
                            &__kv_names::COUNT,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (): () = __request.arguments(&[])?;
                                        let __replier = __request.replier();
                                        let __value = Kv::count(&*__handler).await;
                                        __replier.value(&__value)
                                    }
                                }
                            },
                        );
                    methods
                        .add(
                            &__kv_names::FORGET,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (r#type, key): (u8, String) = __request
                                            .arguments(&["type", "key"])?;
                                        let __replier = __request.replier();
                                        let __value = Kv::forget(&*__handler, r#type, key).await;
                                        __replier.value(&__value)
                                    }
                                }
                            },
                        );
                    let _ = (handler, methods);
                },
            ),
        )
    }
    /// At most so many calls of the service run at once, on all pollers of the node; without this, what one
    /// peer and all together may run limits them (`handler_limit`). Further calls are refused at once,
    /// as `ResourceExhausted` with the reason `Overloaded`: they have not run, and may be repeated after a
    /// pause, or at another server.
    ///
    /// A limit of 0 is refused when the node starts.
    #[must_use]
    pub fn limit(self, most: u32) -> Self {
        Self(self.0.limit(most))
    }
    /// At most so many calls of `get` run at once, as [`Self::limit`] has it for all methods.
    #[must_use]
    pub fn limit_get(self, most: u32) -> Self {
        Self(self.0.limit_method(&__kv_names::GET, most))
    }
    /// At most so many calls of `put` run at once, as [`Self::limit`] has it for all methods.
    #[must_use]
    pub fn limit_put(self, most: u32) -> Self {
        Self(self.0.limit_method(&__kv_names::PUT, most))
    }
    /// At most so many calls of `count` run at once, as [`Self::limit`] has it for all methods.
    #[must_use]
    pub fn limit_count(self, most: u32) -> Self {
        Self(self.0.limit_method(&__kv_names::COUNT, most))
    }
    /// At most so many calls of `forget` run at once, as [`Self::limit`] has it for all methods.
    #[must_use]
    pub fn limit_forget(self, most: u32) -> Self {
        Self(self.0.limit_method(&__kv_names::FORGET, most))
    }
}
impl ::core::convert::From<KvServer> for ::trunkline::stub::Service {
    fn from(server: KvServer) -> Self {
        server.0
    }
}
/// A client of [`Kv`] for any thread and any executor. Cloning it is cheap.
///
/// A call is made when its method is called: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future brings the outcome, also that of a call that could not be made; it borrows the client, and nothing of the arguments. Dropping it cancels the call, whether or not it has been polled; the handler may have run by then.
#[derive(Debug, Clone)]
pub struct KvClient {
    channel: ::trunkline::Channel,
}
impl KvClient {
    /// A client of the node that listens at `server`. The first call connects.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::Node,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::Channel>::connect(from, server)?,
        })
    }
    /// The same client with this time limit for each call, in place of 10 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// The client's methods with these options for each call. The futures borrow only the client.
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> KvClientWith<'c, 'o> {
        KvClientWith {
            channel: &self.channel,
            options,
        }
    }
    /// A client of the same server whose calls start there in the order in which its methods were called,
    /// whatever the sizes of the calls and whenever their futures are polled: one poller of this node sends
    /// them to one of the server's. So do the calls of its clones, with its own; all other calls promise no
    /// order, those of `self` included.
    ///
    /// A call that fails, is refused or is cancelled is left out, and the next ones start. When the session
    /// with the server ends, calls that have not left end as `Aborted`, in their order: they would follow
    /// others whose fate is unknown. Later calls go through the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// The value of a key.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn get(
        &self,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Option<Bytes>, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.channel
            .call(
                &::trunkline::CallOptions::new(),
                &__kv_names::GET,
                &(key,),
                ::trunkline::Bytes::new(),
            )
            .decoded(::trunkline::stub::Response::optional_bytes)
    }
    /// Sets a value.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.channel
            .call(&::trunkline::CallOptions::new(), &__kv_names::PUT, &(key,), value)
            .decoded(::trunkline::stub::Response::value)
    }
    /// How many keys there are.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn count(
        &self,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.channel
            .call(
                &::trunkline::CallOptions::new(),
                &__kv_names::COUNT,
                &(),
                ::trunkline::Bytes::new(),
            )
            .decoded(::trunkline::stub::Response::value)
    }
    /// The key will not be needed soon.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn forget(
        &self,
        r#type: u8,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.channel
            .send(
                &::trunkline::CallOptions::new(),
                &__kv_names::FORGET,
                &(r#type, key),
                ::trunkline::Bytes::new(),
            )
            .decoded(|_| ::core::result::Result::Ok(()))
    }
}
/// A [`KvClient`] with other options, see its `with`.
#[derive(Debug, Clone, Copy)]
pub struct KvClientWith<'c, 'o> {
    channel: &'c ::trunkline::Channel,
    options: &'o ::trunkline::CallOptions,
}
impl<'c> KvClientWith<'c, '_> {
    /// The value of a key.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn get(
        self,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Option<Bytes>, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .call(self.options, &__kv_names::GET, &(key,), ::trunkline::Bytes::new())
            .decoded(::trunkline::stub::Response::optional_bytes)
    }
    /// Sets a value.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .call(self.options, &__kv_names::PUT, &(key,), value)
            .decoded(::trunkline::stub::Response::value)
    }
    /// How many keys there are.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn count(
        self,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .call(self.options, &__kv_names::COUNT, &(), ::trunkline::Bytes::new())
            .decoded(::trunkline::stub::Response::value)
    }
    /// The key will not be needed soon.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn forget(
        self,
        r#type: u8,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .send(
                self.options,
                &__kv_names::FORGET,
                &(r#type, key),
                ::trunkline::Bytes::new(),
            )
            .decoded(|_| ::core::result::Result::Ok(()))
    }
}
/// A client of [`Kv`] for tasks on one poller; its calls stay on that thread.
///
/// A call is made when its method is called: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future brings the outcome, also that of a call that could not be made; it borrows the client, and nothing of the arguments. Dropping it cancels the call, whether or not it has been polled; the handler may have run by then.
#[derive(Debug, Clone)]
pub struct KvLocal {
    channel: ::trunkline::LocalChannel,
}
impl KvLocal {
    /// A client of the node that listens at `server`. The first call connects.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::PollerContext,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::LocalChannel>::connect(from, server)?,
        })
    }
    /// The same client with this time limit for each call, in place of 10 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// The client's methods with these options for each call. The futures borrow only the client.
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> KvLocalWith<'c, 'o> {
        KvLocalWith {
            channel: &self.channel,
            options,
        }
    }
    /// A client of the same server whose calls start there in the order in which its methods were called,
    /// whatever the sizes of the calls and whenever their futures are polled: one poller of this node sends
    /// them to one of the server's. So do the calls of its clones, with its own; all other calls promise no
    /// order, those of `self` included.
    ///
    /// A call that fails, is refused or is cancelled is left out, and the next ones start. When the session
    /// with the server ends, calls that have not left end as `Aborted`, in their order: they would follow
    /// others whose fate is unknown. Later calls go through the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// The value of a key.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn get(
        &self,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Option<Bytes>, ::trunkline::Status>,
    > + use<'_> {
        self.channel
            .call(
                &::trunkline::CallOptions::new(),
                &__kv_names::GET,
                &(key,),
                ::trunkline::Bytes::new(),
            )
            .decoded(::trunkline::stub::Response::optional_bytes)
    }
    /// Sets a value.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + use<'_> {
        self.channel
            .call(&::trunkline::CallOptions::new(), &__kv_names::PUT, &(key,), value)
            .decoded(::trunkline::stub::Response::value)
    }
    /// How many keys there are.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn count(
        &self,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'_> {
        self.channel
            .call(
                &::trunkline::CallOptions::new(),
                &__kv_names::COUNT,
                &(),
                ::trunkline::Bytes::new(),
            )
            .decoded(::trunkline::stub::Response::value)
    }
    /// The key will not be needed soon.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn forget(
        &self,
        r#type: u8,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + use<'_> {
        self.channel
            .send(
                &::trunkline::CallOptions::new(),
                &__kv_names::FORGET,
                &(r#type, key),
                ::trunkline::Bytes::new(),
            )
            .decoded(|_| ::core::result::Result::Ok(()))
    }
}
/// A [`KvLocal`] with other options, see its `with`.
#[derive(Debug, Clone, Copy)]
pub struct KvLocalWith<'c, 'o> {
    channel: &'c ::trunkline::LocalChannel,
    options: &'o ::trunkline::CallOptions,
}
impl<'c> KvLocalWith<'c, '_> {
    /// The value of a key.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn get(
        self,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Option<Bytes>, ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .call(self.options, &__kv_names::GET, &(key,), ::trunkline::Bytes::new())
            .decoded(::trunkline::stub::Response::optional_bytes)
    }
    /// Sets a value.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .call(self.options, &__kv_names::PUT, &(key,), value)
            .decoded(::trunkline::stub::Response::value)
    }
    /// How many keys there are.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn count(
        self,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .call(self.options, &__kv_names::COUNT, &(), ::trunkline::Bytes::new())
            .decoded(::trunkline::stub::Response::value)
    }
    /// The key will not be needed soon.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn forget(
        self,
        r#type: u8,
        key: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<(), ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .send(
                self.options,
                &__kv_names::FORGET,
                &(r#type, key),
                ::trunkline::Bytes::new(),
            )
            .decoded(|_| ::core::result::Result::Ok(()))
    }
}
/// Passed through.
pub fn other() {}
