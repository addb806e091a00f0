use trunkline::stub::Stream;
use trunkline::{Bytes, Status, Streaming};
/// Events and files.
#[allow(dead_code)]
pub trait Feed: 'static {
    /// Streams the events with a prefix.
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = Result<impl Stream<Item = Result<u64, Status>>, Status>,
    >;
    /// Takes a file.
    fn upload(
        &self,
        name: String,
        chunks: Streaming<Bytes>,
    ) -> impl ::core::future::Future<Output = Result<u64, Status>>;
    /// Answers each item.
    fn chat(
        &self,
        items: Streaming<String>,
    ) -> impl ::core::future::Future<
        Output = Result<impl Stream<Item = Result<Bytes, Status>>, u8>,
    >;
}
#[allow(dead_code)]
type __FeedCodec = ::trunkline::codec::Bincode;
#[allow(dead_code, non_upper_case_globals)]
static __FeedService: ::trunkline::stub::ServiceName = ::trunkline::stub::ServiceName {
    name: "Feed",
    version: 1u32,
    oldest: 1u32,
    codec: <__FeedCodec as ::trunkline::codec::Codec>::ID,
    codec_name: <__FeedCodec as ::trunkline::codec::Codec>::NAME,
    hash: 4219841536946623045u64,
};
#[allow(dead_code, non_upper_case_globals)]
static __Feed_watch: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__FeedService,
    name: "watch",
    hash: 5569961593426152438u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::FromServer,
    shapes: ::core::option::Option::Some({
        static SHAPES: ::trunkline::stub::MethodShapes = ::trunkline::stub::MethodShapes::new(|
            __shapes|
        {
            __shapes
                .argument(
                    "prefix",
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::shape(),
                );
            __shapes
                .result(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        u64,
                        { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                    >::shape(),
                );
        });
        &SHAPES
    }),
};
#[allow(dead_code, non_upper_case_globals)]
static __Feed_upload: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__FeedService,
    name: "upload",
    hash: 12533991334241520413u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::FromClient,
    shapes: ::core::option::Option::Some({
        static SHAPES: ::trunkline::stub::MethodShapes = ::trunkline::stub::MethodShapes::new(|
            __shapes|
        {
            __shapes
                .argument(
                    "name",
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::shape(),
                );
            __shapes
                .result(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        u64,
                        { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                    >::shape(),
                );
        });
        &SHAPES
    }),
};
#[allow(dead_code, non_upper_case_globals)]
static __Feed_chat: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__FeedService,
    name: "chat",
    hash: 6108947457357310466u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::Both,
    shapes: ::core::option::Option::Some({
        static SHAPES: ::trunkline::stub::MethodShapes = ::trunkline::stub::MethodShapes::new(|
            __shapes|
        {
            __shapes
                .items(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::shape(),
                );
            __shapes
                .error(
                    ::trunkline::stub::Failing::<
                        __FeedCodec,
                        u8,
                        { ::trunkline::stub::Named::<u8>::IS_BORROWED },
                    >::shape(),
                );
        });
        &SHAPES
    }),
};
#[allow(unused_imports)]
use ::trunkline::stub::{NoCoding as _, NotFailing as _, NotNamed as _};
/// A server of [`Feed`]. Pass it to `NodeBuilder::serve`.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug)]
pub struct FeedServer(::trunkline::stub::Service);
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl FeedServer {
    /// Creates a server whose handler is shared by all pollers of the node.
    #[must_use]
    pub fn new<__Handler: Feed + ::core::marker::Send + ::core::marker::Sync>(
        handler: __Handler,
    ) -> Self {
        Self::shared(::std::sync::Arc::new(handler))
    }
    /// Creates a server from a handler that is already in an `Arc`.
    #[must_use]
    pub fn shared<__Handler: Feed + ::core::marker::Send + ::core::marker::Sync>(
        handler: ::std::sync::Arc<__Handler>,
    ) -> Self {
        Self(
            ::trunkline::stub::Service::new(
                &__FeedService,
                move |_, methods| {
                    Self::__register(
                        ::std::rc::Rc::new(::std::sync::Arc::clone(&handler)),
                        methods,
                    );
                    ::core::result::Result::Ok(())
                },
            ),
        )
    }
    /// Creates a server with one handler per poller. The handlers need not be `Send`.
    ///
    /// `make` runs once on the thread of each poller, with the context of that poller. If it fails or panics, the node
    /// does not start and the error names the cause. Services with `#[offload]` or `#[blocking]` methods cannot use it.
    #[must_use]
    pub fn per_poller<__Handler: Feed, __Failure>(
        make: impl ::core::ops::Fn(
            &::trunkline::PollerContext,
        ) -> ::core::result::Result<
                __Handler,
                __Failure,
            > + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self
    where
        __Failure: ::core::convert::Into<::trunkline::stub::Cause>,
    {
        Self(
            ::trunkline::stub::Service::new(
                &__FeedService,
                move |context, methods| {
                    let handler = make(context).map_err(::core::convert::Into::into)?;
                    Self::__register(
                        ::std::rc::Rc::new(::std::boxed::Box::new(handler)),
                        methods,
                    );
                    ::core::result::Result::Ok(())
                },
            ),
        )
    }
    fn __register<__Shared>(
        handler: ::std::rc::Rc<__Shared>,
        methods: &mut ::trunkline::stub::Methods,
    )
    where
        __Shared: ::core::ops::Deref + 'static,
        __Shared::Target: Feed + ::core::marker::Sized,
    {
        methods
            .add(
                &__Feed_watch,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        async move {
                            let (prefix,) = __request
                                .arguments(
                                    &["prefix"],
                                    (
                                        ::trunkline::stub::Coding::<
                                            __FeedCodec,
                                            String,
                                            { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                        >::decoder(),
                                    ),
                                )?;
                            let __replier = __request.replier();
                            let __writer = __request.writer();
                            let __value = Feed::watch(&**__handler, prefix).await;
                            let __value: ::core::result::Result<_, Status> = __value;
                            let __value = __value
                                .map_err(::trunkline::stub::Named::<Status>::failure)?;
                            __writer
                                .send(
                                    __value,
                                    |__item: u64, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                                        __buffer
                                            .value(
                                                &::trunkline::stub::Coding::<
                                                    __FeedCodec,
                                                    u64,
                                                    { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                                                >::of(&__item),
                                            )
                                    },
                                )
                                .await?;
                            __replier.end()
                        }
                    }
                },
            );
        methods
            .add(
                &__Feed_upload,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        async move {
                            let (name,) = __request
                                .arguments(
                                    &["name"],
                                    (
                                        ::trunkline::stub::Coding::<
                                            __FeedCodec,
                                            String,
                                            { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                        >::decoder(),
                                    ),
                                )?;
                            let __replier = __request.replier();
                            let chunks = __request
                                .raw_items(::trunkline::stub::Named::<Bytes>::value)?;
                            let __value = Feed::upload(&**__handler, name, chunks).await;
                            let __value: ::core::result::Result<u64, Status> = ::trunkline::stub::Named::<
                                Result<u64, Status>,
                            >::result(__value);
                            let __value = __value
                                .map_err(::trunkline::stub::Named::<Status>::failure)?;
                            __replier
                                .value(
                                    &::trunkline::stub::Coding::<
                                        __FeedCodec,
                                        u64,
                                        { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                                    >::of(&__value),
                                )
                        }
                    }
                },
            );
        methods
            .add(
                &__Feed_chat,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        async move {
                            let () = __request.arguments(&[], ())?;
                            let __replier = __request.replier();
                            let items = __request
                                .items(
                                    ::trunkline::stub::Coding::<
                                        __FeedCodec,
                                        String,
                                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                    >::decoder(),
                                )?;
                            let __writer = __request.writer();
                            let __value = Feed::chat(&**__handler, items).await;
                            let __value: ::core::result::Result<_, u8> = __value;
                            let __value = __value
                                .map_err(|__error| ::trunkline::stub::Failing::<
                                    __FeedCodec,
                                    u8,
                                    { ::trunkline::stub::Named::<u8>::IS_BORROWED },
                                >::into_failure(__error, &__replier))?;
                            __writer
                                .send(
                                    __value,
                                    |
                                        __item: Bytes,
                                        __buffer: &mut ::trunkline::stub::ItemBuffer|
                                    {
                                        __buffer
                                            .bytes(::trunkline::stub::Named::<Bytes>::body(__item))
                                    },
                                )
                                .await?;
                            __replier.end()
                        }
                    }
                },
            );
        let _ = (handler, methods);
    }
    /// Limits how many calls of the service run concurrently, across all pollers of the node.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and the reason `Overloaded`. It has not run and may
    /// be repeated after a pause, or at another server. Without this limit, only `handler_limit` applies.
    ///
    /// A limit of 0 is refused when the node starts.
    #[must_use]
    pub fn limit(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit(most))
    }
    /// Passes each call of the service through `interceptor` before its arguments are decoded, behind the
    /// interceptors that were added before.
    #[must_use]
    pub fn interceptor(self, interceptor: impl ::trunkline::ServerInterceptor) -> Self {
        Self(self.0.interceptor(interceptor))
    }
    /// Limits how many `watch` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_watch(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Feed_watch, most))
    }
    /// Limits how many `upload` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_upload(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Feed_upload, most))
    }
    /// Limits how many `chat` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_chat(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Feed_chat, most))
    }
}
impl ::core::convert::From<FeedServer> for ::trunkline::stub::Service {
    fn from(server: FeedServer) -> Self {
        server.0
    }
}
/// A client of [`Feed`] for any thread and any executor. Cloning it is cheap.
///
/// Calling a method starts the call: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been polled. The handler may have run by then.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone)]
pub struct FeedClient {
    channel: ::trunkline::Channel,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl FeedClient {
    /// Creates a client that calls through `channel`.
    #[must_use]
    pub fn new(channel: ::trunkline::Channel) -> Self {
        ::trunkline::stub::trace(&[&__Feed_watch, &__Feed_upload, &__Feed_chat]);
        Self { channel }
    }
    /// Creates a client of the node that listens at `server`. The first call connects.
    ///
    /// A host name is resolved once, by this function, which may block. To resolve it again before each connection,
    /// create the client from a channel.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::Node,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::trunkline::stub::trace(&[&__Feed_watch, &__Feed_upload, &__Feed_chat]);
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::Channel>::connect(from, server)?,
        })
    }
    /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// Returns the client's methods with `options` for each call: its time limit, its metadata and others. Their
    /// futures borrow only the client.
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> FeedClientWith<'c, 'o> {
        FeedClientWith {
            channel: &self.channel,
            options,
        }
    }
    /// Returns a client of the same server whose calls start there in the order in which its methods were called.
    ///
    /// The order holds whatever the sizes of the calls and whenever their futures are polled. Clones of the returned
    /// client share its order. Other calls are not ordered, including those of `self`.
    ///
    /// A call that fails, is refused or is cancelled is skipped, and the next ones start. When the session with the
    /// server ends, calls that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls
    /// is unknown. Later calls use the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// Streams the events with a prefix.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        let (__call, __opened) = self
            .channel
            .open(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Feed_watch,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&prefix),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::no_items(),
            );
        __call
            .decoded(move |__response| {
                let _ = __response.bytes()?;
                ::core::result::Result::Ok(
                    __opened
                        .items(
                            ::trunkline::stub::Coding::<
                                __FeedCodec,
                                u64,
                                { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                            >::decoder(),
                        ),
                )
            })
    }
    /// Takes a file.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_, __Items> {
        let (__call, _) = self
            .channel
            .open(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Feed_upload,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    chunks,
                    |__item: Bytes, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer.bytes(::trunkline::stub::Named::<Bytes>::body(__item))
                    },
                ),
            );
        __call
            .decoded(|__response| {
                let __value = __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __FeedCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )?;
                ::core::result::Result::Ok(__value)
            })
    }
    /// Answers each item.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + ::core::marker::Send + use<'_, __Items> {
        let (__call, __opened) = self
            .channel
            .open(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Feed_chat,
                &(),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    items,
                    |__item: String, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer
                            .value(
                                &::trunkline::stub::Coding::<
                                    __FeedCodec,
                                    String,
                                    { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                >::of(&__item),
                            )
                    },
                ),
            );
        __call
            .decoded(move |__response| {
                let __response: ::core::result::Result<
                    ::trunkline::stub::Response,
                    <u8 as ::trunkline::stub::MethodError<
                        { ::trunkline::stub::Named::<u8>::IS_STATUS },
                    >>::Call,
                > = ::trunkline::stub::Failing::<
                    __FeedCodec,
                    u8,
                    { ::trunkline::stub::Named::<u8>::IS_BORROWED },
                >::check(__response);
                let _ = __response?.bytes()?;
                ::core::result::Result::Ok(
                    __opened.bytes(::trunkline::stub::Named::<Bytes>::value),
                )
            })
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ::core::convert::From<::trunkline::Channel> for FeedClient {
    /// Creates a client that calls through `channel`.
    fn from(channel: ::trunkline::Channel) -> Self {
        ::trunkline::stub::trace(&[&__Feed_watch, &__Feed_upload, &__Feed_chat]);
        Self { channel }
    }
}
/// A [`FeedClient`] with other call options, from [`FeedClient::with`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
pub struct FeedClientWith<'c, 'o> {
    channel: &'c ::trunkline::Channel,
    options: &'o ::trunkline::CallOptions,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl<'c> FeedClientWith<'c, '_> {
    /// Streams the events with a prefix.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn watch(
        self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        let (__call, __opened) = self
            .channel
            .open(
                self.options,
                &__Feed_watch,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&prefix),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::no_items(),
            );
        __call
            .decoded(move |__response| {
                let _ = __response.bytes()?;
                ::core::result::Result::Ok(
                    __opened
                        .items(
                            ::trunkline::stub::Coding::<
                                __FeedCodec,
                                u64,
                                { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                            >::decoder(),
                        ),
                )
            })
    }
    /// Takes a file.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c, __Items> {
        let (__call, _) = self
            .channel
            .open(
                self.options,
                &__Feed_upload,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    chunks,
                    |__item: Bytes, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer.bytes(::trunkline::stub::Named::<Bytes>::body(__item))
                    },
                ),
            );
        __call
            .decoded(|__response| {
                let __value = __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __FeedCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )?;
                ::core::result::Result::Ok(__value)
            })
    }
    /// Answers each item.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + ::core::marker::Send + use<'c, __Items> {
        let (__call, __opened) = self
            .channel
            .open(
                self.options,
                &__Feed_chat,
                &(),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    items,
                    |__item: String, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer
                            .value(
                                &::trunkline::stub::Coding::<
                                    __FeedCodec,
                                    String,
                                    { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                >::of(&__item),
                            )
                    },
                ),
            );
        __call
            .decoded(move |__response| {
                let __response: ::core::result::Result<
                    ::trunkline::stub::Response,
                    <u8 as ::trunkline::stub::MethodError<
                        { ::trunkline::stub::Named::<u8>::IS_STATUS },
                    >>::Call,
                > = ::trunkline::stub::Failing::<
                    __FeedCodec,
                    u8,
                    { ::trunkline::stub::Named::<u8>::IS_BORROWED },
                >::check(__response);
                let _ = __response?.bytes()?;
                ::core::result::Result::Ok(
                    __opened.bytes(::trunkline::stub::Named::<Bytes>::value),
                )
            })
    }
}
/// A client of [`Feed`] for tasks on one poller. Its calls stay on that thread.
///
/// Calling a method starts the call: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been polled. The handler may have run by then.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone)]
pub struct FeedLocal {
    channel: ::trunkline::LocalChannel,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl FeedLocal {
    /// Creates a client that calls through `channel`.
    #[must_use]
    pub fn new(channel: ::trunkline::LocalChannel) -> Self {
        ::trunkline::stub::trace(&[&__Feed_watch, &__Feed_upload, &__Feed_chat]);
        Self { channel }
    }
    /// Creates a client of the node that listens at `server`. The first call connects.
    ///
    /// A host name is resolved once, by this function, which may block. To resolve it again before each connection,
    /// create the client from a channel.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::PollerContext,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::trunkline::stub::trace(&[&__Feed_watch, &__Feed_upload, &__Feed_chat]);
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::LocalChannel>::connect(from, server)?,
        })
    }
    /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// Returns the client's methods with `options` for each call: its time limit, its metadata and others. Their
    /// futures borrow only the client.
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> FeedLocalWith<'c, 'o> {
        FeedLocalWith {
            channel: &self.channel,
            options,
        }
    }
    /// Returns a client of the same server whose calls start there in the order in which its methods were called.
    ///
    /// The order holds whatever the sizes of the calls and whenever their futures are polled. Clones of the returned
    /// client share its order. Other calls are not ordered, including those of `self`.
    ///
    /// A call that fails, is refused or is cancelled is skipped, and the next ones start. When the session with the
    /// server ends, calls that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls
    /// is unknown. Later calls use the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// Streams the events with a prefix.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + use<'_> {
        let (__call, __opened) = self
            .channel
            .open(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Feed_watch,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&prefix),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::no_items(),
            );
        __call
            .decoded(move |__response| {
                let _ = __response.bytes()?;
                ::core::result::Result::Ok(
                    __opened
                        .items(
                            ::trunkline::stub::Coding::<
                                __FeedCodec,
                                u64,
                                { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                            >::decoder(),
                        ),
                )
            })
    }
    /// Takes a file.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'_, __Items> {
        let (__call, _) = self
            .channel
            .open(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Feed_upload,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    chunks,
                    |__item: Bytes, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer.bytes(::trunkline::stub::Named::<Bytes>::body(__item))
                    },
                ),
            );
        __call
            .decoded(|__response| {
                let __value = __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __FeedCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )?;
                ::core::result::Result::Ok(__value)
            })
    }
    /// Answers each item.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + use<'_, __Items> {
        let (__call, __opened) = self
            .channel
            .open(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Feed_chat,
                &(),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    items,
                    |__item: String, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer
                            .value(
                                &::trunkline::stub::Coding::<
                                    __FeedCodec,
                                    String,
                                    { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                >::of(&__item),
                            )
                    },
                ),
            );
        __call
            .decoded(move |__response| {
                let __response: ::core::result::Result<
                    ::trunkline::stub::Response,
                    <u8 as ::trunkline::stub::MethodError<
                        { ::trunkline::stub::Named::<u8>::IS_STATUS },
                    >>::Call,
                > = ::trunkline::stub::Failing::<
                    __FeedCodec,
                    u8,
                    { ::trunkline::stub::Named::<u8>::IS_BORROWED },
                >::check(__response);
                let _ = __response?.bytes()?;
                ::core::result::Result::Ok(
                    __opened.bytes(::trunkline::stub::Named::<Bytes>::value),
                )
            })
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ::core::convert::From<::trunkline::LocalChannel> for FeedLocal {
    /// Creates a client that calls through `channel`.
    fn from(channel: ::trunkline::LocalChannel) -> Self {
        ::trunkline::stub::trace(&[&__Feed_watch, &__Feed_upload, &__Feed_chat]);
        Self { channel }
    }
}
/// A [`FeedLocal`] with other call options, from [`FeedLocal::with`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
pub struct FeedLocalWith<'c, 'o> {
    channel: &'c ::trunkline::LocalChannel,
    options: &'o ::trunkline::CallOptions,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl<'c> FeedLocalWith<'c, '_> {
    /// Streams the events with a prefix.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn watch(
        self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + use<'c> {
        let (__call, __opened) = self
            .channel
            .open(
                self.options,
                &__Feed_watch,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&prefix),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::no_items(),
            );
        __call
            .decoded(move |__response| {
                let _ = __response.bytes()?;
                ::core::result::Result::Ok(
                    __opened
                        .items(
                            ::trunkline::stub::Coding::<
                                __FeedCodec,
                                u64,
                                { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                            >::decoder(),
                        ),
                )
            })
    }
    /// Takes a file.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'c, __Items> {
        let (__call, _) = self
            .channel
            .open(
                self.options,
                &__Feed_upload,
                &(
                    ::trunkline::stub::Coding::<
                        __FeedCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    chunks,
                    |__item: Bytes, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer.bytes(::trunkline::stub::Named::<Bytes>::body(__item))
                    },
                ),
            );
        __call
            .decoded(|__response| {
                let __value = __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __FeedCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )?;
                ::core::result::Result::Ok(__value)
            })
    }
    /// Answers each item.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + use<'c, __Items> {
        let (__call, __opened) = self
            .channel
            .open(
                self.options,
                &__Feed_chat,
                &(),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::outgoing(
                    items,
                    |__item: String, __buffer: &mut ::trunkline::stub::ItemBuffer| {
                        __buffer
                            .value(
                                &::trunkline::stub::Coding::<
                                    __FeedCodec,
                                    String,
                                    { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                >::of(&__item),
                            )
                    },
                ),
            );
        __call
            .decoded(move |__response| {
                let __response: ::core::result::Result<
                    ::trunkline::stub::Response,
                    <u8 as ::trunkline::stub::MethodError<
                        { ::trunkline::stub::Named::<u8>::IS_STATUS },
                    >>::Call,
                > = ::trunkline::stub::Failing::<
                    __FeedCodec,
                    u8,
                    { ::trunkline::stub::Named::<u8>::IS_BORROWED },
                >::check(__response);
                let _ = __response?.bytes()?;
                ::core::result::Result::Ok(
                    __opened.bytes(::trunkline::stub::Named::<Bytes>::value),
                )
            })
    }
}
/// Calls of [`Feed`] from any thread, implemented by [`FeedClient`], and by what its `with` returns. Code that takes an `impl FeedCalls` also accepts a mock.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
pub trait FeedCalls {
    /// Streams the events with a prefix.
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + ::core::marker::Send;
    /// Takes a file.
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send;
    /// Answers each item.
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + ::core::marker::Send;
}
/// Calls of [`Feed`] from one thread, whose futures need not be `Send`. Implemented by [`FeedLocal`] and by every [`FeedCalls`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
pub trait LocalFeedCalls {
    /// Streams the events with a prefix.
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    >;
    /// Takes a file.
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    >;
    /// Answers each item.
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    >;
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl FeedCalls for FeedClient {
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::watch(self, prefix)
    }
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::upload(self, name, chunks)
    }
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + ::core::marker::Send {
        Self::chat(self, items)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl FeedCalls for FeedClientWith<'_, '_> {
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::watch(*self, prefix)
    }
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::upload(*self, name, chunks)
    }
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > + ::core::marker::Send {
        Self::chat(*self, items)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl LocalFeedCalls for FeedLocal {
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > {
        Self::watch(self, prefix)
    }
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        Self::upload(self, name, chunks)
    }
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > {
        Self::chat(self, items)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl LocalFeedCalls for FeedLocalWith<'_, '_> {
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > {
        Self::watch(*self, prefix)
    }
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        Self::upload(*self, name, chunks)
    }
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > {
        Self::chat(*self, items)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl<__Caller: FeedCalls> LocalFeedCalls for __Caller {
    fn watch(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<::trunkline::Streaming<u64>, ::trunkline::Status>,
    > {
        <__Caller as FeedCalls>::watch(self, prefix)
    }
    fn upload<
        __Items: ::trunkline::stub::Stream<Item = Bytes> + ::core::marker::Send + 'static,
    >(
        &self,
        name: String,
        chunks: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        <__Caller as FeedCalls>::upload(self, name, chunks)
    }
    fn chat<
        __Items: ::trunkline::stub::Stream<Item = String> + ::core::marker::Send
            + 'static,
    >(
        &self,
        items: __Items,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            <u8 as ::trunkline::stub::MethodError<
                { ::trunkline::stub::Named::<u8>::IS_STATUS },
            >>::Call,
        >,
    > {
        <__Caller as FeedCalls>::chat(self, items)
    }
}
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_CONTEXT,
    "argument `prefix` of `watch` is a `trunkline::Context`; take it as `cx: &Context`, the first argument after `&self`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BORROWED,
    "argument `prefix` of `watch` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<String>::IS_CONTEXT
        || ::trunkline::stub::Named::<String>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __FeedCodec,
            String,
            { ::trunkline::stub::Named::<String>::IS_BORROWED },
        >::IS_POSSIBLE,
    "argument `prefix` of `watch` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BYTES,
    "argument `prefix` of `watch` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<u64>::IS_BORROWED,
    "an item of the stream of `watch` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<u64>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __FeedCodec,
            u64,
            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
        >::IS_POSSIBLE,
    "an item of the stream of `watch` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<u64>::IS_BYTES,
    "an item of the stream of `watch` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Status>::IS_STATUS,
    "the error of `watch`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own type, for example by `use ... as Refusal`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_CONTEXT,
    "argument `name` of `upload` is a `trunkline::Context`; take it as `cx: &Context`, the first argument after `&self`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BORROWED,
    "argument `name` of `upload` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<String>::IS_CONTEXT
        || ::trunkline::stub::Named::<String>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __FeedCodec,
            String,
            { ::trunkline::stub::Named::<String>::IS_BORROWED },
        >::IS_POSSIBLE,
    "argument `name` of `upload` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BYTES,
    "argument `name` of `upload` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "an item of `chunks` of `upload`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    !false,
    "the result of `upload` is a `Result` by another name, which the macro does not see; write `Result<T, E>`, or give the alias the name `Result`",
);
const _: () = ::trunkline::stub::require(
    false || !::trunkline::stub::Named::<u64>::IS_BORROWED,
    "the result of `upload` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    false || ::trunkline::stub::Named::<u64>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __FeedCodec,
            u64,
            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
        >::IS_POSSIBLE,
    "the result of `upload` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !(::trunkline::stub::Named::<u64>::IS_BYTES
        || ::trunkline::stub::Named::<u64>::IS_OPTIONAL_BYTES),
    "the result of `upload` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Status>::IS_STATUS,
    "the error of `upload`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own type, for example by `use ... as Refusal`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Result<u64, Status>>::IS_RESULT,
    "the result of `upload`: a type named `Result` must be the standard library's; rename your own type, for example by `use ... as OwnResult`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BORROWED,
    "an item of `items` of `chat` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<String>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __FeedCodec,
            String,
            { ::trunkline::stub::Named::<String>::IS_BORROWED },
        >::IS_POSSIBLE,
    "an item of `items` of `chat` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BYTES,
    "an item of `items` of `chat` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "an item of the stream of `chat`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<u8>::IS_BORROWED,
    "the error of `chat` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<u8>::IS_BORROWED
        || ::trunkline::stub::Failing::<
            __FeedCodec,
            u8,
            { ::trunkline::stub::Named::<u8>::IS_BORROWED },
        >::IS_POSSIBLE,
    "the error of `chat` cannot be sent: add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields, or return `trunkline::Status`; for an error of anyhow or eyre write `anyhow::Result<T>` or `eyre::Result<T>`, and use the feature of that name",
);
