//! What librdmacm exports, over the device's connection manager.
