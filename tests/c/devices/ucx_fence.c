/*
 * One-sided communication of UCX with a fence in between: two workers of one process, a value put,
 * `ucp_worker_fence`, another value put, and what became of each step.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

static ucp_context_h context;
static ucp_worker_h near, far;
static ucs_status_t failure = UCS_OK;

static void must(ucs_status_t status, const char *what)
{
	if (status == UCS_OK)
		return;
	printf("no %s: %s\n", what, ucs_status_string(status));
	exit(1);
}

static void failed(void *argument, ucp_ep_h endpoint, ucs_status_t status) { failure = status; }

/* Waits for a request; both workers answer meanwhile. */
static ucs_status_t finished(ucs_status_ptr_t request)
{
	if (!UCS_PTR_IS_PTR(request))
		return UCS_PTR_STATUS(request);
	ucs_status_t status;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		ucp_worker_progress(near);
		ucp_worker_progress(far);
	}
	ucp_request_free(request);
	return status;
}

static ucp_worker_h new_worker(void)
{
	ucp_worker_params_t params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				       .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_worker_h worker;
	must(ucp_worker_create(context, &params, &worker), "worker");
	return worker;
}

static ucp_ep_h connected(void)
{
	ucp_address_t *address;
	size_t length;
	must(ucp_worker_get_address(far, &address, &length), "address");
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
						 UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
						 UCP_EP_PARAM_FIELD_ERR_HANDLER,
				   .address = address,
				   .err_mode = UCP_ERR_HANDLING_MODE_PEER,
				   .err_handler = { .cb = failed } };
	ucp_ep_h endpoint;
	must(ucp_ep_create(near, &params, &endpoint), "endpoint");
	ucp_worker_release_address(far, address);
	return endpoint;
}

static ucp_rkey_h key_of(ucp_ep_h endpoint, void *memory, size_t length)
{
	ucp_mem_map_params_t params = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
						      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
					.address = memory,
					.length = length };
	ucp_mem_h handle;
	must(ucp_mem_map(context, &params, &handle), "registration");
	void *packed;
	size_t size;
	must(ucp_rkey_pack(context, handle, &packed, &size), "packed key");
	ucp_rkey_h key;
	must(ucp_ep_rkey_unpack(endpoint, packed, &key), "key");
	ucp_rkey_buffer_release(packed);
	return key;
}

/* So large that it is still under way at the fence. */
enum { LENGTH = 8 << 20 };

int main(void)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
				.features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 };
	ucp_config_t *config;
	must(ucp_config_read(NULL, NULL, &config), "configuration");
	must(ucp_init(&params, config, &context), "context");
	ucp_config_release(config);
	near = new_worker();
	far = new_worker();
	ucp_ep_h endpoint = connected();
	static unsigned char from[LENGTH], to[LENGTH];
	ucp_rkey_h key = key_of(endpoint, to, LENGTH);
	ucp_request_param_t none = { 0 };
	must(finished(ucp_ep_flush_nbx(endpoint, &none)), "connection");
	printf("UCX %s\n", ucp_get_version_string());
	memset(from, 1, LENGTH);
	ucs_status_ptr_t put = ucp_put_nbx(endpoint, from, LENGTH, (uintptr_t)to, key, &none);
	printf("fence: %s\n", ucs_status_string(ucp_worker_fence(near)));
	printf("put: %s\n", ucs_status_string(finished(put)));
	printf("flush: %s\n", ucs_status_string(finished(ucp_ep_flush_nbx(endpoint, &none))));
	printf("endpoint: %s\n", ucs_status_string(failure));
	printf("memory: %s\n", memcmp(from, to, LENGTH) ? "differs" : "as it was put");
	return 0;
}
