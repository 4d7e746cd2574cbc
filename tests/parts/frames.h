struct Code { int64_t head[15]; char* name; };                                       // co_name at 120
struct Frame { void* function; void* names[3]; Code* code; void* object; Frame* previous; void* at; int64_t more; char* local[20]; };
static bool maps(const void* p) {  // as far as a number tells: libraries and what is mapped beside them, or the heap
  const uint64_t a = reinterpret_cast<uint64_t>(p), beside = reinterpret_cast<uint64_t>(&omp_get_max_threads);
  const int64_t far = static_cast<int64_t>(a - beside);
  return a % 8 == 0 && (a & 0xffffffff) > 0x100000 && ((far < 2147483648 && far > -8589934592) || a >> 40 == 0x55 || a >> 40 == 0x56);
}
static bool is_called(const Frame* f, const char* name, int64_t length) {
  return memcmp(f->code->name + 48, name, length + 1) == 0;
}
// The innermost frame of Python: the stack above holds its address, and each frame that of its caller.
static Frame* frames() {
  void* here = nullptr;
  void** stack = reinterpret_cast<void**>(&here);
  for (int64_t i = 0; i < 1200; ++i) {
    void* const word = *const_cast<void* volatile*>(stack + i);
    if (!maps(word) || (reinterpret_cast<uint64_t>(word) & 0xffff) == 0xff00 || (word >= stack - 4096 && word < stack + 8192)) continue;
    Frame* f = static_cast<Frame*>(word);
    bool right = true;
    void* type = nullptr;
    for (int k = 0; k < 4 && right; ++k, f = f->previous) {
      right = maps(f) && maps(f->code) && maps(f->previous);
      right = right && (f->code->head[0] & 0xffffff) == f->code->head[0] && f->code->head[0] > 0 && maps((void*)f->code->head[1]);
      if (right && type == nullptr) type = (void*)f->code->head[1];
      right = right && (void*)f->code->head[1] == type && maps(f->code->name);
    }
    if (right) return static_cast<Frame*>(word);
  }
  return nullptr;
}
static Frame* frame_of(const char* name, int64_t length) {
  Frame* f = frames();
  for (int k = 0; f != nullptr && k < 40 && maps(f) && maps(f->code) && maps(f->code->name); ++k, f = f->previous)
    if (is_called(f, name, length)) return f;
  return nullptr;
}
