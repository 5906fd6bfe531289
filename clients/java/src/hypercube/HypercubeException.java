package hypercube;

/**
 * A call that failed. The code is the server's error code, or UNAVAILABLE (no usable answer), DEADLINE_EXCEEDED (the
 * timeout passed) and INVALID_ARGUMENT (wrong arguments) where the client itself found the problem.
 */
public final class HypercubeException extends Exception {
  private static final long serialVersionUID = 1;
  private final String code;
  private final int status;

  HypercubeException(String code, String message, int status) {
    super(code + ": " + message);
    this.code = code;
    this.status = status;
  }

  public String code() {
    return code;
  }

  /** The HTTP status, 0 without an answer. */
  public int status() {
    return status;
  }

  /** The code of an answer without one of its own, such as that of a proxy. */
  static String codeOfStatus(int status) {
    switch (status) {
      case 400: return "INVALID_ARGUMENT";
      case 401: return "UNAUTHENTICATED";
      case 403: return "PERMISSION_DENIED";
      case 404: return "NOT_FOUND";
      case 405: return "UNSUPPORTED";
      case 413: return "TOO_LARGE";
      case 429: return "OVERLOADED";
      case 502:
      case 503: return "UNAVAILABLE";
      case 504: return "DEADLINE_EXCEEDED";
      default: return "INTERNAL";
    }
  }
}
