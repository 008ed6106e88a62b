// A browser gives no worker to a page that is read from a disk, and the search runs in one: here its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.answer = data => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      inner.document.open()
      inner.document.write(`<script>
        self.postMessage = data => self.answer(data)
        self.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(done => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          document.body.append(script)
        })), Promise.resolve())
      <\/script><body><script src="${url}"><\/script>`)
      inner.document.close()
      this.ready = new Promise(done => { inner.onload = done })
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
