/**
 * Disables telemetry of dependencies. onnxruntime (1.29 and newer, also outside Windows) uploads
 * events and keeps a device id and a cache on disk unless this variable is set before the library
 * is loaded. Command lines import this module first, and so does the one module that imports
 * onnxruntime; set the variable to 0 to enable telemetry. See docs/adr/0004.
 *
 * The native library reads the real environment of the process: a worker thread must share it
 * (`env: SHARE_ENV`), or the main thread must have imported this module.
 */
process.env['ORT_DISABLE_TELEMETRY'] ??= '1';

/** The S3 client's warning about old versions of Node is not useful to users of this project. */
process.env['AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED'] ??= 'true';
